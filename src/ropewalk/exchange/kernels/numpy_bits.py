"""Packing of numbers into bits, in numpy: for few of them, and where numba is not installed.

A pass over 16 Ki numbers at a time (which end at whole bytes) keeps their single bits in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.exchange.kernels.selection import Bytes

CHUNK = 1 << 14


def pack_bits(numbers: NDArray[np.uint32], width: int) -> Bytes:
    """As `wire.bits.pack_bits`, of 1 bit at least."""
    shifts = np.arange(width, dtype=np.uint32)
    packed = [
        np.packbits((numbers[start : start + CHUNK, None] >> shifts).astype(np.uint8) & 1, bitorder="little")
        for start in range(0, numbers.size, CHUNK)
    ]
    return np.concatenate(packed)


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """As `wire.bits.unpack_bits`, of 1 bit at least."""
    numbers = np.zeros((count, 4), np.uint8)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        bits = np.unpackbits(data[start * width // 8 :], count=size * width, bitorder="little").reshape(size, width)
        columns = np.packbits(bits, axis=1, bitorder="little")
        numbers[start : start + size, : columns.shape[1]] = columns
    return numbers.view("<u4").reshape(-1)


def pack_unary(numbers: NDArray[Any], num_bits: int) -> Bytes:
    """As `wire.bits.pack_unary`."""
    is_one = np.zeros(num_bits, np.bool_)
    is_one[np.cumsum(numbers + 1, dtype=np.int64) - 1] = True
    return np.packbits(is_one, bitorder="little")


def unpack_unary(data: Bytes, count: int) -> NDArray[np.int64]:
    """As `wire.bits.unpack_unary`; the numbers that there are, if there are not as many."""
    ones = np.flatnonzero(np.unpackbits(data, bitorder="little").view(np.bool_))
    return np.diff(ones, prepend=-1) - 1
