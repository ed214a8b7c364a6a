"""Indices as one bit per component: the smallest coding if about a third of the components or more are sent."""

from __future__ import annotations

import numpy as np

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes
from ropewalk.exchange.wire.index_coding import Coded, IndexCoding


class Bitmap(IndexCoding):
    """One bit per component."""

    def plan(self, indices: Indices, numel: int) -> Coded:
        def write() -> Bytes:
            is_sent = np.zeros(numel, np.bool_)
            is_sent[indices] = True
            return np.packbits(is_sent, bitorder="little")

        return Coded((numel + 7) // 8, write)

    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        if data.size != (numel + 7) // 8:
            raise ValueError(f"a bitmap of {numel} components has {(numel + 7) // 8} bytes, not {data.size}")
        indices = np.flatnonzero(np.unpackbits(data, bitorder="little").view(np.bool_)).astype(np.int32)
        if indices.size != count or indices[-1] >= numel:
            raise ValueError(f"the bitmap has {indices.size} bits set, not {count} below {numel}")
        return indices
