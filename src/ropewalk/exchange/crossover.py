"""Crossover: whether a bucket travels sparse, whole with the state kept, or past the compressor, by predicted time.

    sparse   encode ─▶ all-gather ─▶ decode        wins where links are slow against the kernel
    dense    all of D, one all-reduce              the state keeps learning while messages would be too long
    bypass   the gradient, one all-reduce          no kernel at all: as fast as no compressor

             ┌──── probe ────┐                     local: seconds of kernels, of the slowest member
    start ─▶ sparse ─▶ dense ─▶ decide             transfer: seconds on the wire, of the member that waited least,
             ▲                    │                because waiting beyond that is not the link's fault
             └─ again, later ─────┘

Gradients become sparser while a compressor learns. So bypass is not for buckets that are slow now, but for those where
even an empty message would take longer: where the kernels alone take as long as the whole all-reduce. Pure: the figures
are agreed on, so every member makes the same decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

_WINDOW = 5
"""Number of rounds that the medians cover."""
_SPARSE_PROBE, _DENSE_PROBE = 4, 2
"""The first round after a change sends everything, because nothing is remembered: it tells how fast the links are, and
nothing about later rounds."""
_DENSE_ROUNDS = 20
"""Number of rounds in dense mode, with the state kept, before sparse is tried again."""
_GAIN = 0.9
"""A change of mode must promise to reduce the time to this fraction, or noise would cause changes."""
_HOPELESS = 2.0
"""Where dense is predicted to take this many times longer than sparse, it is not tried."""


class Mode(StrEnum):
    """How a bucket travels."""

    SPARSE = "sparse"
    DENSE = "dense"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of one round of one bucket, as all members agreed on it.

    Attributes:
        local_s: seconds of encoding and decoding.
        transfer_s: seconds of the collective.
        size_bytes: bytes that a member received in it.
    """

    local_s: float
    transfer_s: float
    size_bytes: int = 0

    @classmethod
    def agreed(cls, told: Iterable[Figures]) -> Figures:
        """Combine the figures that each member has measured."""
        told = list(told)
        return cls(
            max(figures.local_s for figures in told),
            min(figures.transfer_s for figures in told),
            max(figures.size_bytes for figures in told),
        )


class Crossover:
    """Decides for one bucket, round by round.

    Args:
        dense_bytes: bytes that a member receives in an all-reduce of the bucket.
        fixed: use this mode always; None to decide by measurement.
        probe_every: number of rounds between two measurements of the other modes.
        patience: number of rounds in a row in which dense wins over sparse, before bypass is used.
    """

    def __init__(
        self, dense_bytes: int, fixed: Mode | None = None, *, probe_every: int = 500, patience: int = 100
    ) -> None:
        self._dense_bytes = dense_bytes
        self._fixed = fixed
        self._probe_every = probe_every
        self._patience = patience
        self._seen: dict[Mode, deque[Figures]] = {mode: deque(maxlen=_WINDOW) for mode in Mode}
        self._whole: Figures | None = None
        self._plan: deque[Mode] = deque([Mode.SPARSE] * _SPARSE_PROBE)
        self._mode: Mode | None = fixed
        self._first = True
        self._num_dense = 0

    @property
    def mode(self) -> Mode:
        """The mode of the round that `advance` began last."""
        if self._mode is None:
            raise RuntimeError("there is no mode before advance() has begun the first round")
        return self._mode

    @property
    def coming(self) -> Mode | None:
        """The mode of the next round, if that does not depend on figures."""
        return self._fixed or (self._plan[0] if self._plan else None)

    @property
    def measured(self) -> bool:
        """Whether this bucket travels alone in this round, so that its seconds can be compared with other rounds."""
        return self._fixed is None and self._mode is not Mode.BYPASS

    def advance(self, figures: Figures | None) -> Mode:
        """Begin the next round.

        Args:
            figures: those of the round before; None where it was not measured, or there was none.

        Returns:
            The mode of this round.
        """
        if self._fixed is not None:
            return self._fixed
        if figures is not None and self._mode is not None and self.measured:
            self._learn(figures)
        if not self._plan or (self._mode is Mode.SPARSE and self._sparse_is_slow):
            self._plan = deque(self._decide())
        before, self._mode = self._mode, self._plan.popleft()
        self._first = before is not self._mode and before is not Mode.DENSE
        if self._mode is Mode.DENSE and before is not Mode.DENSE:
            self._seen[Mode.DENSE].clear()
        return self._mode

    @property
    def _sparse_is_slow(self) -> bool:
        """Whether messages have become too long to pay, compared with the measured dense rounds."""
        sparse, dense = self._seen[Mode.SPARSE], self._seen[Mode.DENSE]
        return len(sparse) == _WINDOW and bool(dense) and self._seconds(Mode.DENSE) < self._seconds(Mode.SPARSE) * _GAIN

    def _learn(self, figures: Figures) -> None:
        if self._mode is Mode.SPARSE and self._first:
            self._whole = figures
        else:
            self._seen[self.mode].append(figures)

    def _decide(self) -> list[Mode]:
        if not self._seen[Mode.SPARSE]:
            return [Mode.SPARSE] * _SPARSE_PROBE
        sparse = self._seconds(Mode.SPARSE)
        if not self._seen[Mode.DENSE]:
            if self._predicted_dense_s > _HOPELESS * sparse:
                return [Mode.SPARSE] * self._probe_every
            return [Mode.DENSE] * _DENSE_PROBE
        bypass = median(figures.transfer_s for figures in self._seen[Mode.DENSE])
        floor = median(figures.local_s for figures in self._seen[Mode.SPARSE])
        self._num_dense = self._num_dense + 1 if self._seconds(Mode.DENSE) < sparse * _GAIN else 0
        if floor > bypass * _GAIN or self._num_dense * _DENSE_ROUNDS > self._patience:
            self._forget()
            return [Mode.BYPASS] * self._probe_every + [Mode.SPARSE] * _SPARSE_PROBE
        if self._num_dense:
            self._seen[Mode.SPARSE].clear()
            return [Mode.DENSE] * _DENSE_ROUNDS + [Mode.SPARSE] * 2
        # The other modes are probed at the end; until then the figures tell when messages become too long.
        again = self._seconds(Mode.DENSE) < _HOPELESS * sparse
        return [Mode.SPARSE] * self._probe_every + [Mode.DENSE] * (_DENSE_PROBE if again else 0)

    @property
    def _predicted_dense_s(self) -> float:
        """Predict the seconds of an all-reduce from the round in which most was sent."""
        rounds = [*self._seen[Mode.SPARSE], *([self._whole] if self._whole else [])]
        most = max(rounds, key=lambda figures: figures.size_bytes)
        return most.transfer_s * self._dense_bytes / most.size_bytes if most.size_bytes else 0.0

    def _forget(self) -> None:
        for seen in self._seen.values():
            seen.clear()
        self._whole, self._num_dense = None, 0

    def _seconds(self, mode: Mode) -> float:
        return median(figures.local_s + figures.transfer_s for figures in self._seen[mode])
