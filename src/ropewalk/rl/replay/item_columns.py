"""`ItemColumn`: which rows each item of a table has in one column of the table's samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.selectors.selector import Keys
from ropewalk.rl.replay.slab import Slots

Allocate: TypeAlias = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]
"""Returns an array of a shape and dtype, contiguous, with any content."""


class ItemColumn:
    """Slots by position of the item: one each, or as many as the longest item has, with -1 after the last one.

    Args:
        stored: name of the stored column that has the rows.
        shape: () for one row an item, (L,) for items of L rows.
    """

    def __init__(self, stored: str, shape: tuple[int, ...]) -> None:
        self.stored = stored
        self.padded = False
        self._slots = np.empty((0, *shape), np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """() for one row an item, (L,) for items of up to L rows."""
        return self._slots.shape[1:]

    def write(self, positions: Keys, slots: Slots, capacity: int) -> None:
        """Set the slots of items.

        Args:
            positions: positions of the items.
            slots: shape (items,) or (items, L), with another L than before where lengths differ; -1 for no row.
            capacity: capacity of the table.
        """
        self._slots = grown(self._slots, capacity, -1)
        if slots.ndim == 1:
            self._slots[positions] = slots
            return
        length, longest = slots.shape[1], self._slots.shape[1]
        if length > longest:
            wider = np.full((len(self._slots), length), -1, np.int64)
            wider[:, :longest] = self._slots
            self._slots = wider
        self._slots[positions, :length] = slots
        self._slots[positions, length:] = -1
        self.padded = self.padded or length != longest or bool((slots < 0).any())

    def slots_of(self, positions: Keys) -> Slots:
        """Return the slots of items as one flat array, without padding."""
        slots = self._slots[positions].reshape(-1)
        return slots[slots >= 0] if self.padded else slots

    def copied(self, num_positions: int) -> ItemColumn:
        """Return a copy of the first positions, of which only `saved` may be called."""
        other = ItemColumn(self.stored, self.shape)
        other._slots = self._slots[:num_positions].copy()
        return other

    def saved(self, positions: Keys, numbers: Slots) -> Slots:
        """Return the slots of items, shape (items,) or (items, L), as numbers under which their rows are saved."""
        slots = self._slots[positions]
        return np.where(slots < 0, -1, numbers[slots])

    def gather(self, store: RowStore, positions: Keys, allocate: Allocate = np.empty) -> Array:
        """Return the rows of items as one array, shape (items, ...) or (items, L, ...).

        Items that are shorter than the longest of them are filled with zeros.

        Args:
            store: has the rows.
            positions: positions of the items.
            allocate: makes the array, from its shape and dtype.
        """
        column = store.columns[self.stored]
        slots = self._slots[positions]
        if self.padded:
            lengths = np.flatnonzero((slots >= 0).any(0))
            slots = slots[:, : int(lengths[-1]) + 1 if len(lengths) else 0]
        out = allocate((*slots.shape, *column.shape), column.dtype)
        column.read(slots, out)
        if self.padded:
            out[slots < 0] = 0
        return out


__all__ = ["Allocate", "ItemColumn"]
