"""How often to take snapshots: as often as a given share of the time allows, so that a death loses little work.

    cost 40 ms, a step takes 100 ms, share 3 %   ──▶   every 14th step: 40 / (14 * 100) = 2.9 %

A snapshot costs the time for which a worker copies its state, or, where that is more, the time by which steps are
slower until all keepers have theirs: sending takes processor time from the steps where no core is free.
Steps admitted since the last snapshot are retained, to be repeated after a death. If they need
more than the limit, snapshots come more often, whatever they cost. A snapshot is not begun
before the last one is whole, so keepers need room for two of each worker.
Pure: it is told of events, and says when a snapshot is due.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median
from typing import Literal

_FIRST = 4
"""The first snapshot comes after this many steps: soon, because its cost must be measured, but so must a step's time.
"""

_NUM_STEPS, _NUM_SNAPSHOTS = 15, 5
"""The medians are taken over this many of the last steps and snapshots."""


class SnapshotPace:
    """Counts steps, and decides after which of them snapshots are taken.

    Args:
        every: the number of steps between snapshots, or "auto".
        share: the fraction of the time that snapshots may take.
        most_retained_bytes: the limit in bytes for the steps retained since the last whole snapshot.

    Raises:
        ValueError: `every` is not a number of steps, or `share` is not a fraction.
    """

    def __init__(
        self, every: int | Literal["auto"] = "auto", *, share: float = 0.03, most_retained_bytes: int = 1 << 30
    ) -> None:
        if every != "auto" and every < 1:
            raise ValueError(f"snapshots are taken every 1 or more steps, or 'auto', not every {every}")
        if not 0 < share <= 1:
            raise ValueError(f"snapshots may take a share of the time above 0 and up to 1, such as 0.03, not {share}")
        self._fixed = None if every == "auto" else every
        self._share = share
        self._most_retained_bytes = most_retained_bytes
        self._steps_s: deque[float] = deque(maxlen=_NUM_STEPS)
        self._slowed_s: list[float] = []
        """Times of the steps without a snapshot under way, and of those with the present one."""
        self._snapshots_s: deque[float] = deque(maxlen=_NUM_SNAPSHOTS)
        self._num_measured = 0
        self._num_since = 0
        """Steps since the last snapshot was requested, and bytes of a step; whether that snapshot is not whole yet."""
        self._step_bytes = 0
        self._is_open = False

    # --- events -------------------------------------------------------------------------------------------------------

    def admitted(self, size_bytes: int, *, can_cut: bool) -> bool:
        """Record that a step was admitted; returns whether all workers shall take a snapshot after it.

        Args:
            size_bytes: the size of the retained step.
            can_cut: whether there is a cut after it (`resuming.can_cut`).

        Returns:
            Whether a snapshot is due after the step.
        """
        self._num_since += 1
        self._step_bytes = max(self._step_bytes, size_bytes)
        if self._is_open or not can_cut or self._num_since < self.every:
            return False
        self._num_since, self._is_open = 0, True
        return True

    def step_took(self, seconds: float) -> None:
        """Record the time between steps, in seconds."""
        if self._is_open and self._steps_s:
            self._slowed_s.append(seconds)
        else:
            self._steps_s.append(seconds)

    def whole(self, seconds: float) -> None:
        """Record that all snapshots have reached their keepers, and the seconds that the slowest worker lost."""
        if self._steps_s:
            # What takes longer than a step is the doing of something else.
            seconds = max(seconds, sum(min(slowed - self._step_s, self._step_s) for slowed in self._slowed_s))
        self._is_open = False
        self._slowed_s.clear()
        self._num_measured += 1
        if self._num_measured == 2:
            self._snapshots_s.clear()  # the first one also allocated the memory for all
        self._snapshots_s.append(seconds)

    def restarted(self) -> None:
        """Record that training goes on from the last whole snapshot; requested ones will not become whole."""
        self._is_open, self._num_since = False, 0
        self._slowed_s.clear()

    # --- decisions ----------------------------------------------------------------------------------------------------

    @property
    def every(self) -> int:
        """The current number of steps between two snapshots."""
        if self._fixed is not None:
            return self._fixed
        if not (self._steps_s and self._snapshots_s):
            return _FIRST
        wanted = max(1, ceil(self._snapshot_s / (self._share * self._step_s)))
        return min(wanted, self._most_retained_steps)

    @property
    def cost(self) -> float | None:
        """The fraction of the time that snapshots take at this pace; None: it is not known yet."""
        if not (self._steps_s and self._snapshots_s):
            return None
        return self._snapshot_s / (self.every * self._step_s)

    @property
    def _most_retained_steps(self) -> int:
        # Twice the steps between snapshots are retained, because one snapshot becomes whole when the next is near.
        return max(1, self._most_retained_bytes // (2 * self._step_bytes)) if self._step_bytes else 1 << 30

    @property
    def _step_s(self) -> float:
        return max(median(self._steps_s), 1e-9)

    @property
    def _snapshot_s(self) -> float:
        return median(self._snapshots_s)
