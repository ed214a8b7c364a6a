"""Between flat tensors and messages: what the members of the family that send components have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.kernels import Selection, scatter_add
from ropewalk.exchange.message import Message
from ropewalk.exchange.wire.sparse import pack_dense, pack_sparse, unpack_sparse
from ropewalk.exchange.wire.values import ValueCodec


def say_all(layout: Layout, flat: Tensor, codec: str | ValueCodec = "same", seed: Sequence[int] = (0,)) -> Message:
    """A message with every component of a bucket.

    Args:
        layout: of the bucket.
        flat: on any device; not changed.
        codec: see `wire.values`; "same" is the dtype of the layout.
        seed: for codecs that round at random.
    """
    return pack_dense(layout, on_host(flat), _codec(layout, codec), seed)


def say_some(layout: Layout, found: Selection, codec: str | ValueCodec = "same", seed: Sequence[int] = (0,)) -> Message:
    """A message with the components that were found; empty if there are none."""
    return pack_sparse(layout, found.indices, found.values, _codec(layout, codec), seed)


def add_said(data: memoryview, layout: Layout, out: Tensor) -> None:
    """Add what either kind of message says to a flat tensor of float32 or float64.

    Raises:
        MessageCorrupt: these are no such bytes.
    """
    indices, values = unpack_sparse(data, layout.numel, layout.dtype)
    if len(indices) < layout.numel:
        scatter_add(out, indices, values)
    elif out.device.type == "cpu":
        # By numpy: received memory is read-only, which tensors cannot be.
        array = out.numpy()
        np.add(array, values, out=array)
    else:
        out.add_(torch.tensor(values, device=out.device))


def on_host(flat: Tensor) -> NDArray[Any]:
    """A tensor as numpy has it, in its own memory if it can be; bfloat16 becomes float32."""
    host = flat.detach().cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy()


def from_host(array: NDArray[Any]) -> Tensor:
    """A tensor in the memory of an array, which must be writable."""
    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]


def _codec(layout: Layout, codec: str | ValueCodec) -> str | ValueCodec:
    return str(layout.dtype).removeprefix("torch.") if codec == "same" else codec
