"""The `View` of a pool, and what other terminals and the page may ask of it."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ropewalk.control.process_stacks import of_processes
from ropewalk.control.rate import Rate
from ropewalk.control.target import ControlTarget, new_id
from ropewalk.control.view import ENDED, EventView, Kind, ProcessView, View
from ropewalk.pool.status import PoolStatus, WorkerStatus

if TYPE_CHECKING:
    from ropewalk.pool.dispatcher import Dispatcher
    from ropewalk.pool.pool import Pool
    from ropewalk.pool.remote_worker import RemoteWorker
    from ropewalk.processes.session import Session

_LATE = 3.0
"""A task is late if it takes longer than this multiple of what such a task is expected to take..."""
_LEAST_LATE_S = 1.0
"""...and than this, in seconds."""


class PoolTarget(ControlTarget):
    """A pool, as its control server sees it; it does not keep the pool from being collected.

    Args:
        pool: the pool.
        dispatcher: of the pool.
        session: of the pool.
    """

    kind: Kind = "pool"

    def __init__(self, pool: Pool, dispatcher: Dispatcher, session: Session) -> None:
        self.id: str = new_id()
        self._name = pool.name
        self._pool = weakref.ref(pool)
        self._dispatcher = dispatcher
        self._session = session
        self._started = time.time()
        self._rate = Rate(time.monotonic())

    @property
    def name(self) -> str:
        """As in `View`."""
        return self._name

    def view(self, panels: Mapping[str, int]) -> View:
        """Return what the pool shows now; see `Observable.view`."""
        dispatcher = self._dispatcher
        status = dispatcher.status(self._name, dispatcher.state)
        num_per_s = self._rate.at(time.monotonic(), status.done)
        shown: dict[str, Any] = {}
        if "tasks" in panels:
            shown["tasks"] = task_counts(status)
        if "stream" in panels:
            shown["stream"] = dispatcher.stream_since(panels["stream"])
        return pool_view(
            status, self.id, self._started, time.time(), num_per_s, events=dispatcher.events(), panels=shown
        )

    def stop(self, grace_s: float | None) -> None:
        """Terminate the pool, and wait until its workers have ended; see `Pool.terminate`."""
        pool = self._pool()
        if pool is not None:  # else it is terminated already
            pool.terminate(grace_s)
        self._dispatcher.wait_until_finished()

    def act(self, action: str, process: str) -> str:
        """Kill a worker: it is replaced, and its tasks start again without blame."""
        if action != "kill":
            raise ValueError(f"a worker of a pool can be asked to kill, not to {action!r}")
        if not self._signal(process, signal.SIGKILL):
            raise ValueError(f"pool {self.name} has no worker {process!r} that runs now; ropewalk ps shows them")
        return f"{process} is killed; another one takes its place, and its tasks"

    def log_files(self) -> Mapping[str, Path]:
        """The output file of each worker, by name."""
        return {worker.name: self._session.output_file(worker.output) for worker in self._workers()}

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """The Python stacks of a worker, or of all, by name."""
        # A worker that is not ready has no handler yet, and the signal would kill it.
        ready = {worker.name for worker in self._workers() if worker.ready and node in (None, self.name, worker.name)}
        files = {name: path for name, path in self.log_files().items() if name in ready}
        return of_processes(files, lambda name: self._signal(name, signal.SIGUSR2), timeout_s)

    def _workers(self) -> list[RemoteWorker]:
        return self._dispatcher.present(ending=False)

    def _signal(self, name: str, number: int) -> bool:
        ids = [worker.id for worker in self._workers() if worker.name == name and worker.link]
        for id in ids:
            self._session.processes.signal(id, number)
        return bool(ids)


def pool_view(
    status: PoolStatus,
    id: str,
    started: float,
    now: float,
    num_per_s: float,
    *,
    events: Iterable[EventView] = (),
    panels: Mapping[str, Any],
) -> View:
    """Return what a pool shows of itself.

    Args:
        status: its state.
        id: as in `View`.
        started: Unix time in seconds at which it was made.
        now: Unix time in seconds.
        num_per_s: tasks that ended per second.
        events: what happened to its workers and hosts.
        panels: the data of the panels that are wanted.
    """
    num_left = status.queued + status.running
    num_ended = status.done + status.failed
    num_all = num_ended + num_left + (status.dropped if status.state in ENDED else 0)
    return View(
        kind="pool",
        name=status.name,
        id=id,
        pid=os.getpid(),
        state=status.state,
        started=started,
        at=now,
        progress=num_ended / num_all if num_all else None,
        left_s=num_left / num_per_s if num_per_s else (None if num_left else 0.0),
        facts={
            **task_counts(status),
            "tasks_per_s": round(num_per_s, 3),
            **({"dropped": status.dropped} if status.dropped else {}),
            "deaths": status.num_deaths,
            "workers": len(status.workers),
            "hosts": len({worker.host for worker in status.workers if worker.host}),
            "memory_bytes": sum(worker.memory_bytes for worker in status.workers),
            **({"relays": "; ".join(status.ways)} if status.ways else {}),
        },
        last_failure=status.deaths[-1].describe() if status.deaths else "",
        processes=processes_of(status),
        events=tuple(events),
        panels=dict(panels),
        offers=("tasks", "stream"),
        actions=("stop",),
        process_actions=("kill", "stack"),
    )


def task_counts(status: PoolStatus) -> dict[str, int]:
    """Return the numbers of tasks by where they are, the panel "tasks"."""
    return {
        "queued": status.queued,
        "running": status.running,
        "done": status.done,
        "failed": status.failed,
        "retried": status.retried,
    }


def processes_of(status: PoolStatus) -> tuple[ProcessView, ...]:
    """Return the workers as processes; one that leaves while its successor is there already is named so."""
    num_deaths = Counter(death.name for death in status.deaths)
    causes = {death.name: death for death in status.deaths}
    late = late_workers(status.workers)
    named: dict[str, ProcessView] = {}
    for worker in sorted(status.workers, key=lambda worker: worker.state == "stopping"):
        cause = causes[worker.name].describe() if worker.name in causes else ""
        name, number = worker.name, 1
        while name in named:
            name, number = f"{worker.name} (leaves{f' {number}' if number > 1 else ''})", number + 1
        shown = _process(worker, name, status.name, num_deaths[worker.name], cause)
        named[name] = replace(shown, straggler=worker in late)
    return tuple(named.values())


def late_workers(workers: Iterable[WorkerStatus]) -> list[WorkerStatus]:
    """Return the workers that are slower than the others: their tasks are late, and the same tasks end elsewhere.

    If the tasks of all of several workers are late, they wait for something, perhaps for each other, and none is the
    slow one.
    """
    running = [worker for worker in workers if worker.state == "running"]
    late = [worker for worker in running if _is_late(worker)]
    return [] if len(late) == len(running) > 1 else [worker for worker in late if worker.others_end]


def _is_late(worker: WorkerStatus) -> bool:
    return worker.expected_s is not None and worker.doing_s > max(_LEAST_LATE_S, _LATE * worker.expected_s)


def _process(worker: WorkerStatus, name: str, pool: str, num_deaths: int, cause: str) -> ProcessView:
    runs = worker.state == "running"
    return ProcessView(
        name=name,
        group=pool,
        kind="worker",
        host=worker.host,
        pid=worker.pid,
        state=worker.state,
        doing=worker.doing if runs else "",
        doing_s=worker.doing_s if runs else 0.0,
        uptime_s=worker.uptime_s,
        memory_bytes=worker.memory_bytes,
        cpu_s=worker.cpu_s,
        silent_s=worker.silent_s,
        restarts=num_deaths,
        done=worker.num_done,
        waiting=worker.num_waiting,
        last_cause=cause,
    )
