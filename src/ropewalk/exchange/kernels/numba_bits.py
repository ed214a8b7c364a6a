"""Packing of numbers into bits, compiled by numba: one loop over the numbers, and the same bytes as in numpy.

Words of 32 bits are filled, or emptied, through a 64-bit word that holds incomplete numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ropewalk.compiling import compiled
from ropewalk.exchange.kernels.selection import Bytes, Indices

_Words = NDArray[np.uint32]


def pack_bits(numbers: NDArray[np.uint32], width: int) -> Bytes:
    """Implement `wire.bits.pack_bits` for a width of at least 1 bit."""
    words = _words(numbers.size * width)
    _pack_bits(numbers, width, words)
    return words.view(np.uint8)[: (numbers.size * width + 7) // 8]


def unpack_bits(data: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """Implement `wire.bits.unpack_bits` for a width of at least 1 bit."""
    numbers = np.empty(count, np.uint32)
    _unpack_bits(_words_of(data, count * width), width, numbers)
    return numbers


def pack_gaps(indices: Indices, width: int, num_rest_bits: int) -> tuple[Bytes, Bytes]:
    """Implement `wire.bits.pack_gaps`."""
    words = _words(indices.size * width)
    rests = np.zeros((num_rest_bits + 7) // 8, np.uint8)
    _pack_gaps(indices, width, words, rests)
    return words.view(np.uint8)[: (indices.size * width + 7) // 8], rests


def unpack_gaps(lows: Bytes, rests: Bytes, count: int, width: int) -> tuple[Indices, int]:
    """Implement `wire.bits.unpack_gaps`."""
    # A byte may add 8 indices to those counted before it, and each candidate is written before it is counted.
    indices = np.empty(count + 9, np.int32)
    last = _unpack_gaps(_words_of(lows, count * width), np.ascontiguousarray(rests), count, width, indices)
    return indices[:count], last


def _words(num_bits: int) -> _Words:
    return np.empty((num_bits + 31) // 32, "<u4")


def _words_of(data: Bytes, num_bits: int) -> _Words:
    size = (num_bits + 7) // 8
    words = np.zeros((size + 3) // 4, "<u4")
    words.view(np.uint8)[:size] = data[:size]
    return words


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
def _pack_gaps(indices: Indices, width: int, words: _Words, rests: Bytes) -> None:
    mask = np.uint64((1 << width) - 1)
    held, num_held, at = np.uint64(0), 0, 0
    last, bit = -1, 0
    for index in indices:
        gap = np.uint64(index - last - 1)
        last = index
        held |= (gap & mask) << np.uint64(num_held)
        num_held += width
        if num_held >= 32:
            words[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held >>= np.uint64(32)
            num_held -= 32
            at += 1
        bit += np.int64(gap >> np.uint64(width))
        rests[bit >> 3] |= np.uint8(1 << (bit & 7))
        bit += 1
    if num_held:
        words[at] = np.uint32(held)


@compiled
def _unpack_gaps(words: _Words, rests: Bytes, count: int, width: int, indices: Indices) -> int:
    # 1. Find the ones without a branch: every position is written, and overwritten by the next unless its bit is set.
    found = 0
    for byte in range(rests.size):
        bits = rests[byte]
        for bit in range(8):
            indices[found] = 8 * byte + bit
            found += (bits >> bit) & 1
        if found > count:
            return -1
    if found != count:
        return -1
    # 2. The gaps between ones are the rests.
    mask = np.uint64((1 << width) - 1)
    held, num_held, at = np.uint64(0), 0, 0
    index, last = np.int64(-1), np.int64(-1)
    for i in range(count):
        if num_held < width:
            held |= np.uint64(words[at]) << np.uint64(num_held)
            num_held += 32
            at += 1
        one = np.int64(indices[i])
        index += ((one - last - 1) << width) + np.int64(held & mask) + 1
        last = one
        held >>= np.uint64(width)
        num_held -= width
        indices[i] = index
    return int(index)
