"""The state of a pool at one moment, from its tasks, its workers and their processes: makes a `PoolStatus`.

The first two functions need the pool's lock, and are quick; `worker_status` asks the session, without the lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ropewalk.pool.chunking import Pace
from ropewalk.pool.history import PoolHistory
from ropewalk.pool.remote_worker import RemoteWorker
from ropewalk.pool.status import PoolStatus, WorkerStatus
from ropewalk.pool.task_content import Content
from ropewalk.pool.task_table import TaskTable, TaskUnit
from ropewalk.processes.process_manager import ProcessManager
from ropewalk.quantities import counted, shown_duration

_MOST_TOLD = 3
"""Running tasks that `tasks_in_words` names."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a worker holds at one moment."""

    worker: RemoteWorker
    current: tuple[TaskUnit, int] | None
    """The item of a unit that it runs or is about to begin."""
    since: float
    """Monotonic time at which it began that item."""
    num_items: int


def pool_status(name: str, state: str, table: TaskTable, history: PoolHistory) -> PoolStatus:
    """Return the state of a pool without that of its workers."""
    return PoolStatus(
        name=name,
        state=state,
        workers=(),
        queued=table.num_pending + table.num_running - table.num_busy,
        running=table.num_busy,
        done=table.num_done,
        failed=table.num_failed,
        retried=table.num_retried,
        num_deaths=history.num_deaths,
        deaths=tuple(history.deaths),
        events=tuple(history.events),
        dropped=table.num_dropped,
    )


def tasks_in_words(status: PoolStatus) -> str:
    """Say in a sentence which tasks run, for how long, and how many wait."""
    busy = sorted((worker for worker in status.workers if worker.doing), key=lambda worker: -worker.doing_s)
    told = [f"{worker.doing} in {worker.name} for {shown_duration(worker.doing_s)}" for worker in busy[:_MOST_TOLD]]
    more = [counted(len(busy) - _MOST_TOLD, "other")] if len(busy) > _MOST_TOLD else []
    runs = f"{counted(status.running, 'task')} of {status.name} {'runs' if status.running == 1 else 'run'}"
    running = f"{runs} ({', '.join([*told, *more])})" if told else runs
    return f"{running}, {status.queued} {'has' if status.queued == 1 else 'have'} not begun, {status.done} done"


def worker_loads(workers: Iterable[RemoteWorker], table: TaskTable) -> list[WorkerLoad]:
    """Return what each worker holds, in the order of ranks."""
    ranked = sorted(workers, key=lambda worker: worker.rank)
    return [WorkerLoad(w, table.current_task(w.id), table.since(w.id), table.num_items(w.id)) for w in ranked]


def worker_status(load: WorkerLoad, processes: ProcessManager, pace: Pace) -> WorkerStatus:
    """Return the state of a worker, with what is known of its process and of the duration of its task."""
    worker, current, now = load.worker, load.current, time.monotonic()
    sample = processes.sample_of(worker.id)
    index = current[0].first_index + current[1] if current else None
    content: Content | None = current[0].content if current else None
    expected_ns = pace.expected_ns(current[0].code) if current else None
    return WorkerStatus(
        name=worker.name,
        pid=processes.pid_of(worker.id),
        host=processes.host_of(worker.id),
        state=worker.state if worker.state != "idle" or current is None else "running",
        task=index,
        num_done=worker.num_done,
        memory_bytes=sample.memory_bytes if sample else 0,
        cpu_s=sample.cpu_s if sample else 0.0,
        doing="" if content is None else content.described(index),
        doing_s=now - load.since if current else 0.0,
        expected_s=None if expected_ns is None else expected_ns / 1e9,
        others_end=current is not None and pace.last_end(current[0].code) > load.since,
        num_waiting=max(0, load.num_items - 1),
        uptime_s=now - worker.connected if worker.connected else 0.0,
        silent_s=processes.silence_of(worker.id),
    )
