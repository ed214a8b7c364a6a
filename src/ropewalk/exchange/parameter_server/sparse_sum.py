"""The sum of sparse messages as one sparse message, which travels back to the workers instead of a dense sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.decoding import decode_all
from ropewalk.exchange.kernels import Selection
from ropewalk.exchange.wire.sparse import pack_sparse, unpack_sparse


def sparse_sum(layout: Layout, messages: Mapping[int, memoryview]) -> bytes:
    """Add up messages of `pack_sparse`, in the order of ranks; the sum is empty if all messages are.

    Args:
        layout: layout of the piece.
        messages: by rank.

    Returns:
        The sum as a message.

    Raises:
        MessageCorrupt: no encoder of this layout can have made these bytes; names the sender's rank.
    """
    heard: list[Selection] = []
    decode_all(messages, lambda data: heard.append(unpack_sparse(data, layout.numel, layout.dtype)))
    if not heard:
        return b""
    indices, places = np.unique(np.concatenate([one.indices for one in heard]), return_inverse=True)
    dtype = np.float64 if layout.dtype == torch.float64 else np.float32
    values = np.zeros(len(indices), dtype)
    start = 0
    for one in heard:
        # The indices of one member are all different, so plain indexing adds every one of them.
        values[places[start : start + len(one.indices)]] += one.values
        start += len(one.indices)
    return pack_sparse(layout, indices, values).data.tobytes()
