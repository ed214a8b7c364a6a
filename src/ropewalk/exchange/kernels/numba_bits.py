"""Packing of numbers into bits, compiled by numba: one loop over the numbers, and the same bytes as in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.exchange.kernels.compiling import compiled
from ropewalk.exchange.kernels.selection import Bytes

_Words = NDArray[np.uint32]


def pack_bits(numbers: NDArray[np.uint32], width: int) -> Bytes:
    """As `wire.bits.pack_bits`, of 1 bit at least."""
    words = np.empty((numbers.size * width + 31) // 32, "<u4")
    _pack_bits(numbers, width, words)
    return words.view(np.uint8)[: (numbers.size * width + 7) // 8]


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """As `wire.bits.unpack_bits`, of 1 bit at least."""
    size = (count * width + 7) // 8
    words = np.zeros((size + 3) // 4, "<u4")
    words.view(np.uint8)[:size] = data[:size]
    numbers = np.empty(count, np.uint32)
    _unpack_bits(words, width, numbers)
    return numbers


def pack_unary(numbers: NDArray[Any], num_bits: int) -> Bytes:
    """As `wire.bits.pack_unary`."""
    data = np.zeros((num_bits + 7) // 8, np.uint8)
    _pack_unary(numbers.astype(np.int64, copy=False), data)
    return data


def unpack_unary(data: Bytes, count: int) -> NDArray[np.int64]:
    """As `wire.bits.unpack_unary`; the numbers that there are, if there are not as many."""
    # `_unpack_unary` writes each candidate before it counts it, and stops at one too many.
    numbers = np.empty(count + 9, np.int64)
    return numbers[: _unpack_unary(np.ascontiguousarray(data), count, numbers)]


@compiled
def _pack_bits(numbers: NDArray[np.uint32], width: int, words: _Words) -> None:
    mask = np.uint64((1 << width) - 1)
    held, num_held, at = np.uint64(0), 0, 0
    for number in numbers:
        held |= (np.uint64(number) & mask) << np.uint64(num_held)
        num_held += width
        if num_held >= 32:
            words[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held >>= np.uint64(32)
            num_held -= 32
            at += 1
    if num_held:
        words[at] = np.uint32(held)


@compiled
def _unpack_bits(words: _Words, width: int, numbers: NDArray[np.uint32]) -> None:
    mask = np.uint64((1 << width) - 1)
    held, num_held, at = np.uint64(0), 0, 0
    for i in range(numbers.size):
        if num_held < width:
            held |= np.uint64(words[at]) << np.uint64(num_held)
            num_held += 32
            at += 1
        numbers[i] = np.uint32(held & mask)
        held >>= np.uint64(width)
        num_held -= width


@compiled
def _pack_unary(numbers: NDArray[np.int64], data: Bytes) -> None:
    at = np.uint64(0)
    for number in numbers:
        at += np.uint64(number)
        data[at >> np.uint64(3)] |= np.uint8(1 << (at & np.uint64(7)))
        at += np.uint64(1)


@compiled
def _unpack_unary(data: Bytes, count: int, numbers: NDArray[np.int64]) -> int:
    found, last = 0, -1
    for byte in range(data.size):
        bits = data[byte]
        for bit in range(8):
            is_one = (bits >> bit) & 1
            numbers[found] = 8 * byte + bit
            found += is_one
        if found > count:
            break
    for i in range(found):
        one = numbers[i]
        numbers[i] = one - last - 1
        last = one
    return found
