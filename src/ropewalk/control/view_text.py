"""A `View` in words: one line for the whole, one for each process, and the last events.

The text contains what processes, hosts and users have named. `described` escapes it, line by line, since a name with a
line break would look like another line; of everything else it is escaped where it is printed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from ropewalk.control.facts import shown_facts
from ropewalk.control.view import EventView, Kind, ProcessView, View
from ropewalk.escaping import escaped
from ropewalk.quantities import counted, shown_duration, shown_size
from ropewalk.text_table import text_table

_SHOWN_CHARACTERS = 120
"""Maximum length of the cause of the last end in the line of a process; the view has the whole text."""
_SHOWN_EVENTS = 5
_DONE = {"program": "calls", "pool": "tasks", "trainer": "steps"}
"""What `ProcessView.done` counts, by kind of thing."""


def described(view: View, most: int | None = None) -> str:
    """The whole in one line, each process in another, and the last events.

    Args:
        view: the view.
        most: as for `foremost`.
    """
    foremost_processes, more = foremost(view, most)
    rows = [*process_lines(view.kind, foremost_processes), *more, *fact_lines(view), *shown_events(view)]
    return "\n".join(map(escaped, [headline(view), *(f"  {row}" for row in rows)]))


def foremost(view: View, most: int | None) -> tuple[Sequence[ProcessView], list[str]]:
    """Choose the processes that are listed: all, or of too many those of which there is something to say, and others.

    Args:
        view: the view.
        most: number of processes from which on they are too many; None: they never are.

    Returns:
        The processes, in the order of the view, and a line that says how many are left out.
    """
    processes = view.processes
    if most is None or len(processes) <= most:
        return processes, []
    by_news = sorted(range(len(processes)), key=lambda at: not _has_news(processes[at]))
    chosen = sorted(by_news[:most])
    left_out = f"and {len(processes) - most:,} more; ropewalk ps {view.name} lists all"
    return [processes[at] for at in chosen], [left_out]


def _has_news(process: ProcessView) -> bool:
    is_usual = process.state in ("running", "idle", "completed")
    return process.straggler or process.restarts > 0 or bool(process.last_cause) or not is_usual


def headline(view: View) -> str:
    """Name, state and counts in one line."""
    up_s = max(0.0, view.at - view.started)
    what = view.facts.get("mode", view.kind)
    return f"{view.name} {view.state}, pid {view.pid}, {what}, up {shown_duration(up_s)}: {counts(view)}"


def counts(view: View) -> str:
    """Counts of processes by state, such as "3 running, 1 restarting"."""
    num_by_state = Counter(process.state for process in view.processes)
    nothing = "no nodes" if view.kind == "program" else "no processes"
    return ", ".join(f"{count} {state}" for state, count in num_by_state.items()) or nothing


def fact_lines(view: View) -> list[str]:
    """The facts in a line, such as "queued 7, running 2"; of a program, whose table has the others, only its relays."""
    if view.kind == "program":
        return [str(view.facts["relays"])] if "relays" in view.facts else []
    facts = [f"{label} {value}" for label, value in shown_facts(view.facts)]
    return [", ".join(facts)] if facts else []


def shown_events(view: View) -> list[str]:
    """The events that fit below a table."""
    return [event_line(event) for event in view.events[-_SHOWN_EVENTS:]]


def event_line(event: EventView) -> str:
    """An event with its local time."""
    at = time.strftime("%H:%M:%S ", time.localtime(event.at)) if event.at else ""
    return f"{at}{event.text}"


def remarks(process: ProcessView) -> list[str]:
    """What is shown only if there is something: what it does, restarts, and the cause of its last end."""
    found: list[str] = []
    if process.doing:
        found.append(f"in {process.doing} for {shown_duration(process.doing_s)}")
    if process.straggler:
        found.append("slower than the others")
    if process.restarts:
        found.append(counted(process.restarts, "restart"))
    if process.last_cause:
        cause = " ".join(process.last_cause.split())
        found.append(cause if len(cause) <= _SHOWN_CHARACTERS else f"{cause[: _SHOWN_CHARACTERS - 1]}…")
    return found


def process_lines(kind: Kind, processes: Sequence[ProcessView]) -> list[str]:
    """Processes of a thing of some kind, each in one line, in columns."""
    return list(text_table([process_cells(kind, process) for process in processes], right={5, 6, 7, 8}))


def process_cells(kind: Kind, process: ProcessView) -> tuple[str, ...]:
    """A process of a thing of some kind as a row of a table."""
    counted = (f"{process.done} {_DONE.get(kind, 'done')}", f"{process.waiting} waiting")
    return (
        process.name,
        process.kind,
        process.state,
        f"pid {process.pid or '-'}",
        process.host,
        shown_duration(process.uptime_s),
        shown_size(process.memory_bytes),
        *(counted if process.is_counted else ("", "")),
        "; ".join(remarks(process)),
    )
