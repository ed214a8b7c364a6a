"""`ItemColumn`: which rows each item of a table has in one column of the table's samples."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.selectors.selector import Keys
from ropewalk.rl.replay.slab import Slots


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
            positions: of the items.
            slots: shape (items,) or (items, L), with another L than before where lengths differ; -1 for no row.
            capacity: of the table.
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

    def batch_array(self, store: RowStore, num_items: int, out: Array | None) -> Array | None:
        """Return an array for the rows of so many items; None where its shape depends on the items.

        Args:
            store: has the rows.
            num_items: how many.
            out: use the first items of this one; None: make one.

        Raises:
            ValueError: `out` has another shape or dtype, or is too small.
        """
        if self.padded:
            return None
        column = store.columns[self.stored]
        shape = (*self.shape, *column.shape)
        if out is None:
            return np.empty((num_items, *shape), column.dtype)
        if len(out) < num_items or (out.shape[1:], out.dtype) != (shape, column.dtype) or not out.flags.c_contiguous:
            raise ValueError(
                f"an array of shape {out.shape} and dtype {out.dtype} was given for {num_items} items of shape {shape} "
                f"and dtype {column.dtype}; it must have at least as many items, contiguous"
            )
        return out[:num_items]

    def gather(self, store: RowStore, positions: Keys, out: Array | None) -> Array:
        """Return the rows of items as one array, shape (items, ...) or (items, L, ...).

        Items that are shorter than the longest of them are filled with zeros.

        Args:
            store: has the rows.
            positions: of the items.
            out: what `batch_array` returned for as many items.
        """
        column = store.columns[self.stored]
        slots = self._slots[positions]
        if out is not None:
            column.read(slots, out)
            return out
        lengths = np.flatnonzero((slots >= 0).any(0))
        slots = slots[:, : int(lengths[-1]) + 1 if len(lengths) else 0]
        padded = np.empty((*slots.shape, *column.shape), column.dtype)
        column.read(slots, padded)
        padded[slots < 0] = 0
        return padded


__all__ = ["ItemColumn"]
