"""Tells that a pool stands still, as `standstill` decides, while tasks wait for a worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from ropewalk.escaping import escaped
from ropewalk.pool.history import PoolHistory
from ropewalk.pool.remote_worker import RemoteWorker
from ropewalk.pool.standstill import Standstill
from ropewalk.pool.task_table import TaskTable
from ropewalk.processes.regular_look import RegularLook
from ropewalk.processes.session import Session
from ropewalk.quantities import counted

logger = logging.getLogger(__name__)

_LOOK_S = 10.0


class StandstillWatch:
    """Looks every ten seconds, while there are tasks that no worker has.

    Args:
        name: of the pool.
        session: has the loop, and knows how much the workers compute.
        table: the tasks of the pool.
        workers: of the pool, by id.
        history: gets the event.
        lock: of the pool; held by the caller of `begin`, and taken for each look.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        table: TaskTable,
        workers: Mapping[str, RemoteWorker],
        history: PoolHistory,
        lock: threading.Lock,
    ) -> None:
        self._name = name
        self._session = session
        self._table = table
        self._workers = workers
        self._history = history
        self._standstill = Standstill()
        self._looks = RegularLook(session.loop, lock, _LOOK_S, self._look)

    def begin(self) -> None:
        """Look from now on, until no tasks wait for a worker."""
        if self._table.num_pending:
            self._looks.begin()

    def _look(self) -> float | None:
        stood_s = self._stood_s()
        if stood_s is not None:
            words = self._words(stood_s)
            self._history.note(words)
            # Without the lock, as a handler of the program may ask for the pool's status.
            self._session.loop.call_soon(lambda: logger.warning("%s", escaped(words)))
        return _LOOK_S if self._table.num_pending else None

    def _stood_s(self) -> float | None:
        table, processes = self._table, self._session.processes
        busy = {id: worker for id, worker in self._workers.items() if table.num_items(id)}
        codes = {task[0].code for id in busy if (task := table.current_task(id))}
        expected_ns = max((table.pace.expected_ns(code) or 0.0 for code in codes), default=0.0)
        samples = {worker.name: processes.sample_of(id) for id, worker in busy.items()}
        return self._standstill.look(
            time.monotonic(),
            num_ended=table.num_done + table.num_failed,
            num_waiting=table.num_pending if len(busy) == len(self._workers) else 0,
            cpu_s={name: sample.cpu_s if sample else 0.0 for name, sample in samples.items()},
            expected_s=expected_ns / 1e9,
        )

    def _words(self, stood_s: float) -> str:
        num = len(self._workers)
        workers = "its only worker waits" if num == 1 else f"all {num} workers of it wait"
        return (
            f"no task of {self._name} has ended for {stood_s:.0f} s: {workers} in a task without computing, and "
            f"{counted(self._table.num_pending, 'task')} wait for a worker. If running tasks wait for those, it is a "
            f"deadlock: take more workers, or let no task wait for another. `ropewalk stack {self._name}` shows where "
            "they wait"
        )
