"""`RowStore`: the rows of all tables and streams of a replay server, each stored once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.slab import Slab, Slots


class RowStore:
    """Columns of rows, with the number of holders of each row: the tables and the streams that need it.

    Slots of one call differ from each other. A row that no one holds any more is free.
    """

    def __init__(self) -> None:
        self.columns: dict[str, RowColumn] = {}

    @property
    def num_bytes(self) -> int:
        """Size of all rows that are held."""
        return sum(column.num_rows * column.row_bytes for column in self.columns.values())

    def check(self, rows: Mapping[str, Array]) -> None:
        """Check that rows fit the columns that are there.

        Raises:
            ValueError: they have another shape or dtype than the rows before them, or contain Python objects.
        """
        for name, array in rows.items():
            column = self.columns.get(name)
            if array.ndim < 1 or array.dtype.hasobject:
                raise ValueError(
                    f"rows of column {name!r} have shape {array.shape} and dtype {array.dtype}; they need a first axis "
                    "of rows, and numbers"
                )
            if column is not None and (array.shape[1:], array.dtype) != (column.shape, column.dtype):
                raise ValueError(
                    f"rows of column {name!r} have shape {array.shape[1:]} and dtype {array.dtype}; the first ones had "
                    f"shape {column.shape} and dtype {column.dtype}, and a column has one of each"
                )

    def reserve(self, rows: Mapping[str, Array]) -> None:
        """Make room, so that adding these rows cannot fail."""
        for name, array in rows.items():
            column = self.columns.get(name) or RowColumn(name, array.shape[1:], array.dtype)
            column.reserve(len(array))
            self.columns[name] = column


class RowColumn:
    """Rows of one column.

    Args:
        name: name of the column, for messages.
        shape: shape of a row.
        dtype: dtype of a row.
    """

    TRIM_FROM_BYTES = 32 << 20
    """A column that takes less memory keeps it: it will be used again."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._slab = Slab(name, shape, dtype)
        self._holders = np.zeros(0, np.int32)
        self._free = np.empty(0, np.int64)
        self._num_free = 0
        self._num_touched = 0
        self._trim_at = 0
        self._num_pins = 0
        self._pinned = np.zeros(1, np.bool_)
        self._pending: list[Slots] = []

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self._slab.shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of a row."""
        return self._slab.dtype

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self._slab.row_bytes

    @property
    def capacity(self) -> int:
        """Number of rows that there is room for."""
        return len(self._holders)

    @property
    def num_rows(self) -> int:
        """Number of rows that are not free."""
        return self._num_touched - self._num_free

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` more rows."""
        size = self._num_touched + max(0, num_rows - self._num_free)
        self._slab.reserve(size)
        self._holders = grown(self._holders, size)
        self._free = grown(self._free, size)

    def add(self, rows: Array) -> Slots:
        """Store rows, for which there is room, with the caller as their holder; return their slots."""
        again = min(len(rows), self._num_free)
        fresh = len(rows) - again
        self._num_free -= again
        slots = self._free[self._num_free : self._num_free + again].copy()
        if fresh:
            slots = np.concatenate((slots, np.arange(self._num_touched, self._num_touched + fresh)))
        self._num_touched += fresh
        if self.num_rows * self.row_bytes >= self.TRIM_FROM_BYTES:
            self._trim_at = max(self._trim_at, self.num_rows // 4)
        self._holders[slots] = 1
        self._slab.write(slots, rows)
        return slots

    def hold(self, slots: Slots) -> None:
        """Count one more holder of each row."""
        self._holders[slots] += 1

    def release(self, slots: Slots) -> None:
        """Count one holder less of each row, and free those that have none."""
        self._holders[slots] -= 1
        freed = slots[self._holders[slots] == 0]
        if self._num_pins:
            pinned = self._pinned[np.minimum(freed, len(self._pinned) - 1)]
            self._pending.append(freed[pinned])
            freed = freed[~pinned]
        self._make_free(freed)

    def pin(self) -> None:
        """Keep the rows that have a holder now, even if they lose it, until `unpin`."""
        # One entry more, which stands for all rows that came later.
        pinned = np.zeros(self._num_touched + 1, np.bool_)
        np.greater(self._holders[: self._num_touched], 0, out=pinned[:-1])
        if self._num_pins:
            pinned[: len(self._pinned)] |= self._pinned
        self._pinned = pinned
        self._num_pins += 1

    def unpin(self) -> None:
        """End a `pin`; after the last one, free the rows that have lost their holders meanwhile."""
        self._num_pins -= 1
        if not self._num_pins:
            for freed in self._pending:
                self._make_free(freed)
            self._pending = []

    def holders(self) -> NDArray[np.int32]:
        """Return a copy of the number of holders of each row."""
        return self._holders[: self._num_touched].copy()

    def read(self, slots: Slots, out: Array) -> None:
        """Copy rows; see `Slab.read`."""
        self._slab.read(slots, out)

    def _make_free(self, freed: Slots) -> None:
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)
        if self.num_rows < self._trim_at:
            self._trim()

    def _trim(self) -> None:
        """Give the memory of free rows back to the system; the first ones are used first afterwards.

        Done when less than a quarter of the rows is left that were in use since the last time, or half of those that
        were left then. Otherwise free rows keep their memory, which is faster to write to than fresh memory.
        """
        self._trim_at = self.num_rows // 2
        free = np.sort(self._free[: self._num_free])
        for run in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1):
            self._slab.forget(int(run[0]), int(run[-1]) + 1)
        self._free[: self._num_free] = free[::-1]


__all__ = ["RowColumn", "RowStore"]
