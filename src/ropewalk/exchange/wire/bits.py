"""Whole numbers of a few bits each, one behind the other, lowest bit first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` numbers of `width` bits take."""
    return (count * width + 7) // 8


def pack_bits(numbers: NDArray[Any], width: int) -> Bytes:
    """Pack the lowest `width` bits (0 to 32) of each number."""
    if width == 0 or not numbers.size:
        return np.empty(0, np.uint8)
    if width in (8, 16, 32):
        return numbers.astype(f"<u{width // 8}").view(np.uint8)
    shifts = np.arange(width, dtype=np.uint32)
    return np.packbits((numbers.astype(np.uint32)[:, None] >> shifts & 1).astype(np.uint8), bitorder="little")


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """The `count` numbers that `pack_bits` packed; `data` has at least their bytes."""
    if width == 0 or not count:
        return np.zeros(count, np.uint32)
    if width in (8, 16, 32):
        whole = np.ascontiguousarray(data[: packed_size(count, width)])
        return whole.view(f"<u{width // 8}").astype(np.uint32)
    bits = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width)
    columns = np.packbits(bits, axis=1, bitorder="little")
    numbers = np.zeros((count, 4), np.uint8)
    numbers[:, : columns.shape[1]] = columns
    return numbers.view("<u4").reshape(-1).astype(np.uint32, copy=False)
