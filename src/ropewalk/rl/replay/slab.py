"""`Slab`: rows of one shape and dtype in one array that grows and shrinks without copying.

The array lies in private anonymous memory. Growing moves pages and copies none (`mremap`), and a page takes memory only
after it was written, so that a slab may be twice as large as needed. Rows are used again in warm memory: writing to
fresh pages is several times slower.
"""

from __future__ import annotations

import math
import mmap

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.bundles import raw

Slots = NDArray[np.int64]


class Slab:
    """Rows by slot. Does not know which slots are in use.

    Args:
        name: name of the column, for messages.
        shape: shape of a row.
        dtype: dtype of a row; without Python objects.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._name = name
        self.shape = shape
        self.dtype = dtype
        self.row_bytes = math.prod(shape) * dtype.itemsize
        self._map: mmap.mmap | None = None
        self._raw = raw(dtype)
        self._rows = np.empty((0, *shape), self._raw)

    @property
    def capacity(self) -> int:
        """Number of rows that there is room for."""
        return len(self._rows)

    def reserve(self, num_rows: int) -> None:
        """Make room for at least `num_rows` rows in all.

        Raises:
            MemoryError: the system does not give that much memory.
        """
        if num_rows <= self.capacity:
            return
        capacity = max(num_rows, 2 * self.capacity)
        size = max(capacity * self.row_bytes, mmap.PAGESIZE)
        old = self.capacity
        # An array on the mapping forbids to resize it.
        self._rows = np.empty((0, *self.shape), self._raw)
        try:
            if self._map is None:
                self._map = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            elif size > len(self._map):
                self._map.resize(size)
            old = capacity
        except (OSError, OverflowError) as error:
            raise MemoryError(
                f"column {self._name!r} of replay needs {size:,} bytes for {capacity:,} rows of {self.row_bytes:,} "
                f"bytes, and the system refused: {error}; use a smaller max_size, or max_bytes"
            ) from error
        finally:
            if self._map is not None:
                self._rows = np.ndarray((old, *self.shape), self._raw, self._map)

    def write(self, slots: Slots, rows: Array) -> None:
        """Copy rows to their slots."""
        self._rows[slots] = rows if self._raw is self.dtype else rows.view(self._raw)

    def read(self, slots: Slots, out: Array) -> None:
        """Copy the rows of `slots`, of any shape, to `out`, shape (*slots.shape, *row shape), contiguous."""
        # With the mode "raise" numpy would gather into a buffer first.
        self._rows.take(slots, 0, out if self._raw is self.dtype else out.view(self._raw), "clip")

    def forget(self, first: int, last: int) -> None:
        """Give the memory of rows `first` to `last`, without `last`, back to the system, in whole pages."""
        start = -(-first * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        end = last * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


__all__ = ["Slab", "Slots"]
