"""Batches that are gathered straight into memory that the sampler sees: each row is copied once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.calls.lent_memory import LentMemory, MemoryBorrower, MemoryLender
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.replay.tables import ReplayTables

_LEAST_BYTES = 256 << 10
"""Smaller batches travel in their answer."""
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """An array in lent memory.

    Attributes:
        at: offset in bytes.
        shape: shape of the array.
        dtype: dtype of the array, as numpy describes it in text.
    """

    at: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class LentBatch:
    """A batch whose arrays are in lent memory.

    Attributes:
        places: places of the columns' arrays.
        info: facts of the items.
        memory: where the memory is.
    """

    places: Mapping[str, ArrayPlace]
    info: SampleInfo
    memory: LentMemory


class BatchLender:
    """Samples into lent memory; the caller provides the locking."""

    def __init__(self) -> None:
        self._lender = MemoryLender()
        self._item_bytes: dict[str, float] = {}
        """By table, the size of an item in the last batch."""

    def sample(self, tables: ReplayTables, table: str, num: int, pid: int) -> Batch | LentBatch:
        """Sample items into memory that is lent to process `pid`; an ordinary batch if that is small, or cannot be."""
        size = math.ceil(self._item_bytes.get(table, 0) * num)
        lent = self._lender.lend(size, pid) if size >= _LEAST_BYTES else None
        if lent is None:
            batch = tables.sample(table, num)
            self._item_bytes[table] = _size(batch.columns) / num
            return batch
        memory = _Memory(lent[0])
        batch = tables.sample(table, num, memory.allocate)
        if memory.is_too_small or len(memory.places) != len(batch.columns):  # arrays of bundles lie in one place
            columns = {name: array.copy() for name, array in batch.columns.items()}
            self._lender.take_back(lent[1], pid)
            self._item_bytes[table] = _size(columns) / num
            return Batch(columns, batch.info)
        places = dict(zip(batch.columns, memory.places, strict=True))
        return LentBatch(places, batch.info, lent[1])


class BatchBorrower:
    """Makes batches of lent memory."""

    def __init__(self) -> None:
        self._borrower = MemoryBorrower()

    def batch(self, lent: LentBatch) -> Batch:
        """Return the batch; its arrays are the memory itself.

        Raises:
            PeerLost: the server is gone.
        """
        memory = self._borrower.open(lent.memory)
        columns = {name: np.asarray(_HeldArray(memory, place)) for name, place in lent.places.items()}
        return Batch(columns, lent.info)

    def close(self) -> None:
        """Release the memory, except for batches that are in use; may be called twice."""
        self._borrower.close()


class _HeldArray:
    """Memory as an array that holds it: numpy would hold what the memory is a view of."""

    def __init__(self, memory: memoryview, place: ArrayPlace) -> None:
        self._memory = memory
        address = np.frombuffer(memory, np.uint8).ctypes.data + place.at
        self.__array_interface__ = {
            "version": 3,
            "shape": place.shape,
            "typestr": place.dtype,
            "data": (address, False),
        }


class _Memory:
    """Gives arrays of a piece of memory, one after the other."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._end = 0
        self.places: list[ArrayPlace] = []
        self.is_too_small = False

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array, of other memory if there is no room."""
        at, size = self._end, math.prod(shape) * dtype.itemsize
        self._end += -(-size // _ALIGN) * _ALIGN
        if at + size > len(self._memory):
            self.is_too_small = True
            return np.empty(shape, dtype)
        self.places.append(ArrayPlace(at, shape, dtype.str))
        return np.ndarray(shape, dtype, self._memory, at)


def _size(columns: Mapping[str, Array]) -> int:
    return sum(-(-array.nbytes // _ALIGN) * _ALIGN for array in columns.values())


__all__ = ["ArrayPlace", "BatchBorrower", "BatchLender", "LentBatch"]
