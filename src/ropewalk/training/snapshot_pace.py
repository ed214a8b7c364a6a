"""How often to take snapshots: as often as a given share of the time allows, so that little is lost by a death.

    took 40 ms, a step takes 100 ms, share 3 %   ──▶   every 14th step: 40 / (14 * 100) = 2.9 %

What is admitted between snapshots is retained, to be done again after a death. If that is
more than may be retained, snapshots come more often, whatever they cost. The next one is
not begun before the last one is whole, so that keepers need room for two of each worker.
Pure: it is told what happened, and says when one is due.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median
from typing import Literal

#: The first snapshot comes after so many steps: soon, because its cost must become known, but the time of a step too.
_FIRST = 4

#: Of so many of the last ones the median counts.
_NUM_STEPS, _NUM_SNAPSHOTS = 15, 5


class SnapshotPace:
    """Counts steps, and says behind which of them snapshots are taken.

    Args:
        every: so many steps, or "auto".
        share: the part of the time that snapshots may take.
        most_retained_bytes: what may be retained, at most, of what was admitted since the last whole snapshot.

    Raises:
        ValueError: they are no numbers of steps, or no part of the time.
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
        self._snapshots_s: deque[float] = deque(maxlen=_NUM_SNAPSHOTS)
        self._num_measured = 0
        #: Steps since the last snapshot was asked for, and bytes of a step; whether that one is still to become whole.
        self._num_since = 0
        self._step_bytes = 0
        self._is_open = False

    # --- what happened ------------------------------------------------------------------------------------------------

    def admitted(self, size_bytes: int, *, can_cut: bool) -> bool:
        """A step was admitted: whether all shall take a snapshot behind it.

        Args:
            size_bytes: of what is retained of it.
            can_cut: whether there is a cut behind it (`resuming.can_cut`).
        """
        self._num_since += 1
        self._step_bytes = max(self._step_bytes, size_bytes)
        if self._is_open or not can_cut or self._num_since < self.every:
            return False
        self._num_since, self._is_open = 0, True
        return True

    def step_took(self, seconds: float) -> None:
        """Steps come at this distance of time."""
        self._steps_s.append(seconds)

    def whole(self, seconds: float) -> None:
        """All snapshots that were asked for lie with their keepers, and held up the slowest worker so long."""
        self._is_open = False
        self._num_measured += 1
        if self._num_measured == 2:
            self._snapshots_s.clear()  # the first one also made the memory for all
        self._snapshots_s.append(seconds)

    def restarted(self) -> None:
        """Training goes on from the last whole snapshot; those that were asked for will not become whole."""
        self._is_open, self._num_since = False, 0

    # --- what follows -------------------------------------------------------------------------------------------------

    @property
    def every(self) -> int:
        """How many steps lie between two snapshots now."""
        if self._fixed is not None:
            return self._fixed
        if not (self._steps_s and self._snapshots_s):
            return _FIRST
        wanted = max(1, ceil(self._snapshot_s / (self._share * self._step_s)))
        return min(wanted, self._most_retained_steps)

    @property
    def cost(self) -> float | None:
        """The part of the time that they take at this pace; None: it is not known yet."""
        if not (self._steps_s and self._snapshots_s):
            return None
        return self._snapshot_s / (self.every * self._step_s)

    @property
    def _most_retained_steps(self) -> int:
        # Twice as many are retained as lie between snapshots, because one becomes whole when the next is near.
        return max(1, self._most_retained_bytes // (2 * self._step_bytes)) if self._step_bytes else 1 << 30

    @property
    def _step_s(self) -> float:
        return max(median(self._steps_s), 1e-9)

    @property
    def _snapshot_s(self) -> float:
        return median(self._snapshots_s)
