"""Indices as Rice codes of their gaps: the smallest for random supports, within 2 percent of the entropy below 10 %.

A gap (components skipped since the last index) is split into its lowest `width` bits and the rest. The rests are in
unary, a 1 after as many 0s; unlike in the usual order all of them come first, so that both halves are whole arrays:

    [width: 1 byte] [lowest bits of all gaps, packed] [rests of all gaps in unary]

R. F. Rice and J. R. Plaunt, Adaptive Variable-Length Coding for Efficient Compression of Spacecraft Television Data,
IEEE Transactions on Communication Technology 19(6), 1971.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes, pack_bits, pack_unary, packed_size, unpack_bits, unpack_unary
from ropewalk.exchange.wire.index_coding import IndexCoding

MAX_WIDTH = 31


class Rice(IndexCoding):
    """Rice codes of gaps."""

    def size_bytes(self, indices: Indices, numel: int) -> int:
        gaps = _gaps(indices)
        return _size_bytes(gaps, _width(gaps))

    def encode(self, indices: Indices, numel: int) -> Bytes:
        gaps = _gaps(indices)
        width = _width(gaps)
        rests = gaps >> width
        unary = pack_unary(rests, gaps.size + int(rests.sum(dtype=np.int64)))
        return np.concatenate([np.array([width], np.uint8), pack_bits(gaps, width), unary])

    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        width = int(data[0]) if data.size else MAX_WIDTH + 1
        if width > MAX_WIDTH:
            raise ValueError(f"a gap has no {width} low bits")
        start = 1 + packed_size(count, width)
        # Codes take at least one bit each, and those of ascending indices at most so many.
        if not count <= 8 * (data.size - start) <= count + (numel >> width) + 7:
            raise ValueError(f"{count} gaps of {width} low bits do not have {data.size} bytes")
        rests = unpack_unary(data[start:], count)
        indices = np.cumsum((rests << width) + unpack_bits(data[1:start], count, width) + 1) - 1
        if indices[-1] >= numel:
            raise ValueError(f"the last index is {indices[-1]} of {numel} components")
        return indices.astype(np.int32)


def _gaps(indices: Indices) -> NDArray[np.int32]:
    return np.diff(indices, prepend=np.int32(-1)) - np.int32(1)


def _width(gaps: NDArray[np.int32]) -> int:
    """The best, or one next to it for supports that are not random: log2 of the mean gap, times ln 2."""
    mean = float(gaps.mean(dtype=np.float64))
    guess = max(0, min(MAX_WIDTH - 1, int(np.log2(max(1.0, 0.69 * mean)))))
    return min((guess, guess + 1), key=lambda width: _size_bytes(gaps, width))


def _size_bytes(gaps: NDArray[Any], width: int) -> int:
    num_unary = gaps.size + int((gaps >> width).sum(dtype=np.int64))
    return 1 + packed_size(gaps.size, width) + (num_unary + 7) // 8
