"""The losses of a training's steps, kept so that a step costs next to nothing and any look shows the whole run.

    put ──▶ the last 256 steps, as they are ──▶ every n-th of them as numbers; n doubles when they are too many

A loss becomes a number when somebody looks, or when its step leaves the last ones and is one of those that are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.pipeline.step_metrics import StepMetrics

_NUM_RECENT = 256
_NUM_OLD = 2048
_RATES_OVER_S = 10.0


class StepLoss(NamedTuple):
    """The loss of a step that is done.

    Attributes:
        step: its number, from 0.
        at: Unix time in seconds at which it was admitted.
        loss: as `StepMetrics.loss`.
        gradient_norm: of all gradients; None if it was not computed.
    """

    step: int
    at: float
    loss: float
    gradient_norm: float | None


@dataclass(slots=True)
class _KeptLoss:
    number: int
    step: int
    at: float
    num_samples: int
    metrics: StepMetrics | None
    found: StepLoss | None = None

    def value(self) -> StepLoss | None:
        """Return the loss as a number, if it is known."""
        metrics = self.metrics
        if self.found is None and metrics is not None and metrics.done:
            norm = None if metrics.gradient_norm is None else float(metrics.gradient_norm)
            self.found = StepLoss(self.step, self.at, float(metrics.loss), norm)
            self.metrics = None
        return self.found


class LossHistory:
    """The losses of one training; may be used from several threads.

    Args:
        num_recent: the number of last steps of which each is kept.
        num_old: the largest number of older steps that are kept.
    """

    def __init__(self, num_recent: int = _NUM_RECENT, num_old: int = _NUM_OLD) -> None:
        self._lock = threading.Lock()
        self._num_recent, self._num_old = num_recent, num_old
        self._recent: deque[_KeptLoss] = deque()
        self._old: list[tuple[int, StepLoss]] = []
        self._stride = 1
        self._num = 0

    def put(self, step: int, metrics: StepMetrics, num_samples: int, at: float) -> None:
        """Record an admitted step.

        Args:
            step: its number, from 0.
            metrics: gets its losses when they are known.
            num_samples: of its mini-batch; 0: not known.
            at: Unix time in seconds.
        """
        with self._lock:
            self._recent.append(_KeptLoss(self._num, step, at, num_samples, metrics))
            self._num += 1
            if len(self._recent) > self._num_recent:
                self._leave(self._recent.popleft())

    def _leave(self, entry: _KeptLoss) -> None:
        if entry.number % self._stride or (found := entry.value()) is None:
            return
        self._old.append((entry.number, found))
        if len(self._old) > self._num_old:
            self._stride *= 2
            self._old = [one for one in self._old if one[0] % self._stride == 0]

    def after(self, cursor: int) -> tuple[int, list[StepLoss]]:
        """Return the losses after a cursor, up to the first that is not known yet.

        Args:
            cursor: what the last call returned; 0 at first. It counts steps as they came, which after the load of an
                older state have the numbers of earlier ones.

        Returns:
            The next cursor, and the losses.
        """
        with self._lock:
            older = [(number, one) for number, one in self._old if number >= cursor]
            entries = list(self._recent)
        found = [one for _, one in older]
        cursor = max([cursor, *(number + 1 for number, _ in older)])
        for entry in entries:
            if (one := entry.value()) is None:
                break
            if entry.number >= cursor:
                found.append(one)
                cursor = entry.number + 1
        return cursor, found

    def last(self) -> StepLoss | None:
        """Return the newest loss that is known."""
        with self._lock:
            entries = list(self._recent)
        return next((found for entry in reversed(entries) if (found := entry.value()) is not None), None)

    def rates(self, now: float) -> tuple[float, float] | None:
        """Return steps and samples per second, over the last 10 s, and over two steps at least.

        Args:
            now: Unix time in seconds.

        Returns:
            Both rates; None if fewer than two steps were admitted.
        """
        with self._lock:
            entries = list(self._recent)
        return _rates([(one.at, one.num_samples) for one in entries], now)


def _rates(admitted: Sequence[tuple[float, int]], now: float) -> tuple[float, float] | None:
    if len(admitted) < 2:
        return None
    begin = len(admitted) - max(2, sum(at >= now - _RATES_OVER_S for at, _ in admitted))
    (first, _), later = admitted[begin], admitted[begin + 1 :]
    length_s = later[-1][0] - first
    # A training that stands still, or waits for its caller, becomes slower with each look.
    if now - later[-1][0] > 2 * length_s / len(later) + 1.0:
        length_s = now - first
    if length_s <= 0:
        return None
    return len(later) / length_s, sum(num for _, num in later) / length_s
