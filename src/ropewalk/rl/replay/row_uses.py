"""`RowUses`: how many times the items of one table name each row of a column."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.slab import Slots


class RowUses:
    """Counts by slot. The table holds a row in the `RowStore` once, while its count is positive."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int32)
        self._scratch = np.empty(0, np.int64)
        self.num_rows = 0

    def reserve(self, num_slots: int) -> None:
        """Make room for slots below `num_slots`."""
        self._counts = grown(self._counts, num_slots)
        self._scratch = grown(self._scratch, num_slots)

    def add(self, slots: Slots) -> Slots:
        """Count each slot once more, as often as it occurs; return those that were not in use, without repetition."""
        unused = slots[self._counts[slots] == 0]
        np.add.at(self._counts, slots, 1)
        new = self._without_repetition(unused)
        self.num_rows += len(new)
        return new

    def remove(self, slots: Slots) -> Slots:
        """Count each slot once less, as often as it occurs; return those that are not in use any more."""
        np.subtract.at(self._counts, slots, 1)
        old = self._without_repetition(slots[self._counts[slots] == 0])
        self.num_rows -= len(old)
        return old

    def _without_repetition(self, slots: Slots) -> Slots:
        places = np.arange(len(slots))
        self._scratch[slots] = places
        return slots[self._scratch[slots] == places]


__all__ = ["RowUses"]
