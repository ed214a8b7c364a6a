"""Packing of numbers into bits, in numpy: for few of them, and where numba is not installed.

Each pass handles 16 Ki numbers (which end at whole bytes), so that their single bits stay in the cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ropewalk.exchange.kernels.selection import Bytes, Indices

CHUNK = 1 << 14


def pack_bits(numbers: NDArray[np.uint32], width: int) -> Bytes:
    """Implement `wire.bits.pack_bits` for a width of at least 1 bit."""
    shifts = np.arange(width, dtype=np.uint32)
    packed = [
        np.packbits((numbers[start : start + CHUNK, None] >> shifts).astype(np.uint8) & 1, bitorder="little")
        for start in range(0, numbers.size, CHUNK)
    ]
    return np.concatenate(packed)


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """Implement `wire.bits.unpack_bits` for a width of at least 1 bit."""
    numbers = np.zeros((count, 4), np.uint8)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        bits = np.unpackbits(data[start * width // 8 :], count=size * width, bitorder="little").reshape(size, width)
        columns = np.packbits(bits, axis=1, bitorder="little")
        numbers[start : start + size, : columns.shape[1]] = columns
    return numbers.view("<u4").reshape(-1)


def pack_gaps(indices: Indices, width: int, num_rest_bits: int) -> tuple[Bytes, Bytes]:
    """Implement `wire.bits.pack_gaps`."""
    gaps = np.diff(indices, prepend=np.int32(-1)) - np.int32(1)
    is_one = np.zeros(num_rest_bits, np.bool_)
    is_one[np.cumsum((gaps >> width) + 1, dtype=np.int64) - 1] = True
    lows = pack_bits(gaps.view(np.uint32), width) if width else np.empty(0, np.uint8)
    return lows, np.packbits(is_one, bitorder="little")


def unpack_gaps(lows: Bytes, rests: Bytes, count: int, width: int) -> tuple[Indices, int]:
    """Implement `wire.bits.unpack_gaps`."""
    ones = np.flatnonzero(np.unpackbits(rests, bitorder="little").view(np.bool_))
    if ones.size != count:
        return np.empty(0, np.int32), -1
    gaps = (np.diff(ones, prepend=-1) - 1) << width
    if width:
        gaps += unpack_bits(lows, count, width)
    indices = np.cumsum(gaps + 1) - 1
    return indices.astype(np.int32), int(indices[-1])
