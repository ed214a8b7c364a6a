"""Whole numbers as bits, lowest bit first: of a fixed width, or in unary, one behind the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.exchange.kernels import bit_kernels
from ropewalk.exchange.kernels.selection import Bytes

__all__ = ["Bytes", "pack_bits", "pack_unary", "packed_size", "unpack_bits", "unpack_unary"]


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` numbers of `width` bits take."""
    return (count * width + 7) // 8


def pack_bits(numbers: NDArray[Any], width: int) -> Bytes:
    """Pack the lowest `width` bits (0 to 32) of each number."""
    if width == 0 or not numbers.size:
        return np.empty(0, np.uint8)
    if width in (8, 16, 32):
        return numbers.astype(f"<u{width // 8}").view(np.uint8)
    return bit_kernels(numbers.size).pack_bits(numbers.astype(np.uint32, copy=False), width)


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """The `count` numbers that `pack_bits` packed; `data` has at least their bytes."""
    if width == 0 or not count:
        return np.zeros(count, np.uint32)
    if width in (8, 16, 32):
        return np.frombuffer(data, f"<u{width // 8}", count).astype(np.uint32)
    return bit_kernels(count).unpack_bits(data, count, width)


def pack_unary(numbers: NDArray[Any], num_bits: int) -> Bytes:
    """Write as many 0s as each number says, and a 1; that makes `num_bits`."""
    return bit_kernels(numbers.size).pack_unary(numbers, num_bits)


def unpack_unary(data: Bytes, count: int) -> NDArray[np.int64]:
    """The `count` numbers that `pack_unary` wrote.

    Raises:
        ValueError: there are more or fewer.
    """
    numbers = bit_kernels(count).unpack_unary(data, count)
    if numbers.size != count:
        raise ValueError(f"there are {'more' if numbers.size > count else 'fewer'} than {count} numbers in unary")
    return numbers
