"""Whole numbers as bits, lowest bit first, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.exchange.kernels import bit_kernels
from ropewalk.exchange.kernels.selection import Bytes, Indices

__all__ = ["Bytes", "pack_bits", "pack_gaps", "packed_size", "unpack_bits", "unpack_gaps"]


def packed_size(count: int, width: int) -> int:
    """Return the number of bytes that `count` numbers of `width` bits take."""
    return (count * width + 7) // 8


def pack_bits(numbers: NDArray[Any], width: int) -> Bytes:
    """Pack the lowest `width` bits (0 to 32) of each number.

    Args:
        numbers: one-dimensional integers.
        width: number of bits of each, 0 to 32.
    """
    if width == 0 or not numbers.size:
        return np.empty(0, np.uint8)
    if width in (8, 16, 32):
        return numbers.astype(f"<u{width // 8}").view(np.uint8)
    return bit_kernels(numbers.size).pack_bits(numbers.astype(np.uint32, copy=False), width)


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """Return the `count` numbers that `pack_bits` packed; `data` has at least their bytes.

    Args:
        data: one-dimensional uint8.
        count: number of numbers.
        width: number of bits of each, 0 to 32.
    """
    if width == 0 or not count:
        return np.zeros(count, np.uint32)
    if width in (8, 16, 32):
        return np.frombuffer(data, f"<u{width // 8}", count).astype(np.uint32)
    return bit_kernels(count).unpack_bits(data, count, width)


def pack_gaps(indices: Indices, width: int, num_rest_bits: int) -> tuple[Bytes, Bytes]:
    """Encode the gaps between ascending indices in two parts.

    Args:
        indices: ascending, at least one.
        width: number of bits of the first part, 0 to 31.
        num_rest_bits: number of bits of the second part: one for each index, plus the sum of all rests.

    Returns:
        The lowest `width` bits of each gap, and the rests in unary: a rest r is r 0s and a 1.
    """
    return bit_kernels(indices.size).pack_gaps(indices, width, num_rest_bits)


def unpack_gaps(lows: Bytes, rests: Bytes, count: int, width: int) -> tuple[Indices, int]:
    """Return the `count` indices that `pack_gaps` encoded, and the last of them, which may need more than 32 bits.

    Args:
        lows: bytes of the first part.
        rests: bytes of the second part.
        count: number of indices.
        width: number of bits of the first part, 0 to 31.

    Raises:
        ValueError: there are more or fewer.
    """
    indices, last = bit_kernels(count).unpack_gaps(lows, rests, count, width)
    if last < 0:
        raise ValueError(f"there are more or fewer than {count} gaps")
    return indices, last
