"""`StageSamples`: the newest sample of each worker of a trainer, asked for while somebody looks.

view ──▶ look() ── sample ──▶ stage processes   at most once in 0.5 s; actions every 2 s or less often (`pay`),
            │                                   exchanges every 5 s
            └ waits 0.3 s at most; a worker that has not answered by then keeps its last sample, which becomes older
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training.worker_sample import WorkerSample

_EVERY_S, _ACTIONS_EVERY_S, _EXCHANGES_EVERY_S = 0.5, 2.0, 5.0
_PATIENCE_S = 0.3

Ask = Callable[[Collection[PlanWorker], bool, bool], Mapping[PlanWorker, "Future[WorkerSample | None]"]]
"""Asks workers of the present plan for a sample, but for some; with their newest actions, with costs of exchanges."""


@dataclass(frozen=True, slots=True)
class TimedSample:
    """A sample, with actions and costs of exchanges that may be somewhat older.

    Attributes:
        sample: of the worker.
        at_s: when it came, by the monotonic clock.
    """

    sample: WorkerSample
    at_s: float


class StageSamples:
    """The samples of one trainer; any number of threads may look.

    Args:
        ask: see `Ask`; it may raise when the trainer has ended.
        clock: returns the time in seconds.
    """

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[PlanWorker, TimedSample] = {}
        self._pending: dict[PlanWorker, Future[WorkerSample | None]] = {}
        self._asked_s = self._actions_s = self._exchanges_s = float("-inf")
        self._actions_every_s = _ACTIONS_EVERY_S

    def look(self) -> dict[PlanWorker, TimedSample]:
        """Return the newest sample of each worker that has ever given one."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._asked_s >= _EVERY_S:
                self._begin(now_s)
            wait(self._pending.values(), _PATIENCE_S)
            for worker, future in self._pending.items():
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._put(worker, future.result())
            self._pending = {worker: one for worker, one in self._pending.items() if not one.done()}
            return dict(self._found)

    def pay(self, cost_s: float) -> None:
        """Ask for actions so rarely that what they cost stays below 1 % of the time.

        Args:
            cost_s: CPU seconds that it took to evaluate the last ones; to receive them takes about as long.
        """
        self._actions_every_s = max(_ACTIONS_EVERY_S, 200 * cost_s)

    def newest(self) -> dict[PlanWorker, TimedSample]:
        """Return the newest samples without asking for others."""
        with self._lock:
            return dict(self._found)

    def _begin(self, now_s: float) -> None:
        self._asked_s = now_s
        with_actions = now_s - self._actions_s >= self._actions_every_s
        with_exchanges = now_s - self._exchanges_s >= _EXCHANGES_EVERY_S
        self._actions_s = now_s if with_actions else self._actions_s
        self._exchanges_s = now_s if with_exchanges else self._exchanges_s
        # Whatever ends a trainer in this moment, or changes its plan: the last samples are shown.
        with contextlib.suppress(Exception):
            self._pending |= self._ask(list(self._pending), with_actions, with_exchanges)

    def _put(self, worker: PlanWorker, sample: WorkerSample | None) -> None:
        if sample is None:  # it is not a worker at the moment
            return
        before = self._found.get(worker)
        if before is not None and before.sample.epoch == sample.epoch:
            sample = replace(
                sample,
                record=sample.record or before.sample.record,
                exchanges=sample.exchanges or before.sample.exchanges,
            )
        self._found[worker] = TimedSample(sample, self._clock())
