"""`View`: what anything that runs shows of itself, for `ropewalk ps`, the page, `ropewalk top` and reports.

    Pool, Program, Process, Trainer, evaluate, Search, Experiment ──▶ View ──▶ header, processes, events: all the same
                                                                       └─panels──▶ pictures, each with data of its own

Every text in it is data from processes and users: it is escaped where it is shown.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

Kind = Literal["program", "pool", "trainer", "population", "search", "experiment", "processes"]
ENDED = frozenset({"completed", "stopped", "failed", "closed"})
"""States of what does not run any more."""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One process, or one replica of a node.

    Attributes:
        name: such as "actor.3"; unique in its view.
        group: of processes that do the same: the node's name, the pool's name, or "stage 2".
        kind: such as "service", "worker" or "stage".
        host: "" or "this host" for the launcher's.
        pid: 0 until it has started.
        state: such as "starting", "idle", "running", "restarting", "completed", "failed", "stopping".
        doing: its task, calls or step, in words; "" for nothing.
        doing_s: seconds since that began.
        uptime_s: seconds since this start of it.
        memory_bytes: resident memory.
        cpu_s: CPU seconds used since its start.
        silent_s: seconds since anything was heard of it; a living process is heard of about once a second.
        straggler: whether it is remarkably slower than the others of its group.
        restarts: caused by failures.
        is_counted: whether `done` and `waiting` count anything; not of a worker of a program, which answers no calls.
        done: tasks, calls or steps that it has completed.
        waiting: tasks or calls that wait for it.
        last_cause: why it ended last; "" if it never ended.
    """

    name: str
    group: str = ""
    kind: str = ""
    host: str = ""
    pid: int = 0
    state: str = ""
    doing: str = ""
    doing_s: float = 0.0
    uptime_s: float = 0.0
    memory_bytes: int = 0
    cpu_s: float = 0.0
    silent_s: float = 0.0
    straggler: bool = False
    restarts: int = 0
    is_counted: bool = True
    done: int = 0
    waiting: int = 0
    last_cause: str = ""


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened.

    Attributes:
        at: Unix time in seconds; 0 if it is not known.
        kind: "death", "restart", "replacement" (as planned), "join", "leave", "retry", "preemption", "checkpoint",
            "plan", "scale", or "" for others.
        text: what happened, with its cause.
        process: name of the process, if it is about one.
    """

    at: float = 0.0
    kind: str = ""
    text: str = ""
    process: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that runs, at one moment.

    Attributes:
        kind: of thing.
        name: as its user named it.
        id: unique on this machine, the same while it runs.
        pid: of the launcher.
        state: "starting", "running", "stopping", or one of `ENDED`.
        started: Unix time in seconds.
        at: Unix time in seconds of this view.
        run: id of its run in the store; "" if it is not tracked.
        progress: share of the work that is done, 0 to 1; None if that is not known.
        left_s: expected seconds until it is done; None if that is not known.
        facts: what stands in the header, in order: short names with numbers (SI units, named in the key:
            "memory_bytes", "tasks_per_s") or short texts.
        last_failure: the last death or error with its cause; "".
        processes: of it; empty if it has none.
        events: oldest first, at most the last 1000.
        panels: data of pictures, JSON objects by name of the panel; only those that were asked for.
        offers: names of the panels that it has.
        actions: that it can be asked for as a whole: of "stop", "pause".
        process_actions: that can be asked for of one process: of "kill", "restart", "stack".
    """

    kind: Kind
    name: str
    id: str
    pid: int
    state: str
    started: float
    at: float
    run: str = ""
    progress: float | None = None
    left_s: float | None = None
    facts: dict[str, float | int | str] = {}
    last_failure: str = ""
    processes: tuple[ProcessView, ...] = ()
    events: tuple[EventView, ...] = ()
    panels: dict[str, dict[str, Any]] = {}
    offers: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    process_actions: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more."""
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return msgspec.json.decode(msgspec.json.encode(self))


class Observable(Protocol):
    """Something that runs, as the control server sees it; called from several threads at once, and may block."""

    def view(self, panels: dict[str, int]) -> View:
        """Return what it shows now.

        Args:
            panels: names of the panels whose data is wanted, each with the cursor of its last data, or 0: a panel of
                many rows (a stream of tasks, points of a curve) answers `{"cursor": n, ...}` with the rows after the
                cursor alone. A panel that costs something to record is recorded while it is asked for, and for ten
                seconds after.
        """
        ...
