"""The growth of an elastic pool: looks at its work now and then, and changes its size as `Elasticity` decides."""

from __future__ import annotations

import threading
import time

from ropewalk.pool.history import PoolHistory
from ropewalk.pool.remote_workers import RemoteWorkers
from ropewalk.pool.scaling import Elasticity
from ropewalk.pool.task_table import TaskTable
from ropewalk.pool.worker_options import WorkerOptions
from ropewalk.processes.regular_look import RegularLook
from ropewalk.processes.session import Session

_LOOK_S = 0.05
"""Seconds between two looks at whether the pool has as many workers as it needs."""


class PoolGrowth:
    """Changes the number of workers with the work; the caller holds the pool's lock.

    Args:
        session: has the loop on which it looks, and knows how many workers an agent holds.
        elasticity: decides; None for a pool whose size only `resize` changes.
        workers: the workers whose number it changes.
        table: the pool's tasks.
        options: of the workers.
        history: is told of each change.
        lock: the pool's lock, taken for each look.
    """

    def __init__(
        self,
        session: Session,
        elasticity: Elasticity | None,
        workers: RemoteWorkers,
        table: TaskTable,
        options: WorkerOptions,
        history: PoolHistory,
        lock: threading.Lock,
    ) -> None:
        self._session = session
        self._elasticity = elasticity
        self._workers = workers
        self._table = table
        self._options = options
        self._history = history
        self._looks = RegularLook(session.loop, lock, _LOOK_S, self._look)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The fewest and the most workers; None if the pool is not elastic."""
        return (self._elasticity.least, self._elasticity.most) if self._elasticity else None

    def look_soon(self) -> None:
        """Look at the work from now on, until nothing changes any more without new work."""
        if self._elasticity:
            self._looks.begin()

    def accepts_refusal(self, why: str) -> bool:
        """Grow no further, as there is no place for another worker; False if the pool cannot do with fewer workers."""
        scaling = self._workers.scaling
        if not self._elasticity or scaling.wanted <= self._elasticity.least:
            return False
        scaling.wanted -= 1
        self._elasticity.most = scaling.wanted
        self._history.note(f"{self._options.name} stays at {scaling.wanted} workers: {why}", "scale")
        return True

    def _look(self) -> float | None:
        elasticity = self._elasticity
        assert elasticity
        if self._workers.take_no_more:
            return None
        wanted, needed = self._workers.scaling.wanted, self._table.num_parallel
        per_agent = self._session.processes.per_agent(self._options.process.resources)
        size = elasticity.look(time.monotonic(), wanted, needed, per_agent)
        if size != wanted:
            self._workers.resize(size)
            verb = "grows" if size > wanted else "shrinks"
            self._history.note(f"{self._options.name} {verb} from {wanted} to {size} workers", "scale")
        return None if elasticity.rests(size, needed) else _LOOK_S
