"""Indices as Rice codes of their gaps: the smallest for random supports, within 2 percent of the entropy below 10 %.

A gap (components skipped since the last index) is split into its lowest `width` bits and the rest. A rest r is in
unary, r 0s and a 1; unlike in the usual order all rests come last, so that both parts are whole arrays:

    [width: 1 byte] [lowest bits of all gaps, packed] [rests of all gaps in unary]

R. F. Rice and J. R. Plaunt, Adaptive Variable-Length Coding for Efficient Compression of Spacecraft Television Data,
IEEE Transactions on Communication Technology 19(6), 1971.
"""

from __future__ import annotations

import math

import numpy as np

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes, pack_gaps, packed_size, unpack_gaps
from ropewalk.exchange.wire.index_coding import Coded, IndexCoding

MAX_WIDTH = 31


class Rice(IndexCoding):
    """Rice codes of gaps."""

    def plan(self, indices: Indices, numel: int) -> Coded:
        gaps = np.diff(indices, prepend=np.int32(-1)) - np.int32(1)

        def size_bytes(width: int) -> int:
            return 1 + packed_size(gaps.size, width) + (num_rest_bits(width) + 7) // 8

        def num_rest_bits(width: int) -> int:
            return gaps.size + int((gaps >> width).sum(dtype=np.int64))

        # The best width for random supports is log2 of the mean gap times ln 2, rounded up or down.
        mean = (int(indices[-1]) + 1 - gaps.size) / gaps.size
        guess = min(int(math.log2(max(1.0, math.log(2) * mean))), MAX_WIDTH - 1)
        size, width = min((size_bytes(width), width) for width in (guess, guess + 1))

        def write() -> Bytes:
            return np.concatenate([np.array([width], np.uint8), *pack_gaps(indices, width, num_rest_bits(width))])

        return Coded(size, write)

    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        width = int(data[0]) if data.size else MAX_WIDTH + 1
        if width > MAX_WIDTH:
            raise ValueError(f"a gap has no {width} low bits")
        start = 1 + packed_size(count, width)
        # Each code takes at least one bit, and codes of ascending indices take at most this number of bits.
        if not count <= 8 * (data.size - start) <= count + (numel >> width) + 7:
            raise ValueError(f"{count} gaps of {width} low bits do not have {data.size} bytes")
        indices, last = unpack_gaps(data[1:start], data[start:], count, width)
        if last >= numel:
            raise ValueError(f"the last index is {last} of {numel} components")
        return indices
