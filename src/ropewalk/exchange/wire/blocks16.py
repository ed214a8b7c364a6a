"""Indices as 16 bits within blocks of 65,536 components: the fastest coding, and never far from the smallest.

[number in block 0: 4 bytes] ... for all blocks but the last     [index within its block: 2 bytes] ...
"""

from __future__ import annotations

import numpy as np

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes
from ropewalk.exchange.wire.index_coding import Coded, IndexCoding

BLOCK = 1 << 16


class Blocks16(IndexCoding):
    """Two bytes per index."""

    def plan(self, indices: Indices, numel: int) -> Coded:
        num_counts = _num_counts(numel)

        def write() -> Bytes:
            ends = np.searchsorted(indices, np.arange(1, num_counts + 1) * BLOCK)
            counts = np.diff(ends, prepend=0).astype("<u4")
            return np.concatenate([counts.view(np.uint8), indices.astype("<u2").view(np.uint8)])

        return Coded(4 * num_counts + 2 * indices.size, write)

    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        num_counts = _num_counts(numel)
        if data.size != 4 * num_counts + 2 * count:
            raise ValueError(f"{count} indices in {num_counts + 1} blocks have {4 * num_counts + 2 * count} bytes")
        counts = np.frombuffer(data, "<u4", num_counts).astype(np.int64)
        last = count - int(counts.sum())
        if last < 0:
            raise ValueError(f"the blocks hold {counts.sum()} indices, the message {count}")
        starts = np.repeat(np.arange(num_counts + 1) * BLOCK, np.append(counts, last))
        indices = starts + np.frombuffer(data, "<u2", count, 4 * num_counts)
        if indices[-1] >= numel or (np.diff(indices) <= 0).any():
            raise ValueError(f"the indices do not ascend within {numel} components")
        return indices.astype(np.int32)


def _num_counts(numel: int) -> int:
    return (numel - 1) // BLOCK
