"""The watch over workers that hold several tasks: tasks may wait after a slow one, and so may results.

    every few milliseconds ─▶ table.recallable       ─▶ recall half of a slow worker's tasks for idle workers
                           ─▶ table.silent           ─▶ read the page of a worker whose results are late
                           ─▶ table.cancelled_behind ─▶ recall tasks of cancelled jobs

The table decides; this asks it, only while any worker holds more than one task.
"""

from __future__ import annotations

import threading
import time

from ropewalk.pool.task_table import TaskTable
from ropewalk.processes.regular_look import RegularLook
from ropewalk.processes.session import Session

_WATCH_S = 0.005
"""Seconds between two looks."""
_WATCH_WORKERS = 256
"""With more workers than this that hold several tasks, each one is checked less often."""


class TaskWatch:
    """Recalls tasks and reads task pages, as the table decides; the caller holds the pool's lock.

    Args:
        session: carries out recalls, and has the loop that runs the watch.
        table: the pool's tasks.
        lock: the pool's lock, taken for each look.
    """

    def __init__(self, session: Session, table: TaskTable, lock: threading.Lock) -> None:
        self._session = session
        self._table = table
        self._looks = RegularLook(session.loop, lock, _WATCH_S, self._look)

    def begin(self) -> None:
        """Watch from now on, while any worker holds several tasks."""
        if self._table.watchful:
            self._looks.begin()

    def recall(self) -> None:
        """Recall tasks from workers that have more than they can do soon, for idle ones."""
        for id, until in self._table.recallable(time.monotonic()):
            self._session.processes.recall(id, until)

    def recall_all(self, id: str) -> None:
        """Recall all tasks from a worker but the one it is in."""
        self._session.processes.recall(id, self._table.next_seq(id), everything=True)

    def _look(self) -> float | None:
        self.recall()
        for id in self._table.silent(time.monotonic()):
            self._session.processes.peek(id)
        for id in self._table.cancelled_behind():
            self.recall_all(id)
        return _WATCH_S * max(1.0, self._table.num_deep / _WATCH_WORKERS) if self._table.watchful else None
