"""Conversion between flat tensors and messages, shared by all compressors that send components."""

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
    """Make a message with every component of a bucket.

    Args:
        layout: layout of the bucket.
        flat: the components, flat, on any device; not changed.
        codec: see `wire.values`; "same" is the dtype of the layout.
        seed: for codecs that round stochastically.

    Returns:
        The message.
    """
    return pack_dense(layout, on_host(flat), _codec(layout, codec), seed)


def say_some(layout: Layout, found: Selection, codec: str | ValueCodec = "same", seed: Sequence[int] = (0,)) -> Message:
    """Make a message with the selected components; it is empty if there are none."""
    return pack_sparse(layout, found.indices, found.values, _codec(layout, codec), seed)


def add_said(data: memoryview, layout: Layout, out: Tensor) -> None:
    """Add the components of either kind of message to a flat tensor of float32 or float64.

    Args:
        data: bytes of the message.
        layout: layout of the bucket.
        out: flat; changed in place.

    Raises:
        MessageCorrupt: the bytes are no such message.
    """
    indices, values = unpack_sparse(data, layout.numel, layout.dtype)
    if len(indices) < layout.numel:
        scatter_add(out, indices, values)
    elif out.device.type == "cpu":
        # Added by numpy: received memory is read-only, and a tensor cannot be.
        array = out.numpy()
        np.add(array, values, out=array)
    else:
        out.add_(torch.tensor(values, device=out.device))


def on_host(flat: Tensor) -> NDArray[Any]:
    """Return a tensor as a numpy array, which shares its memory where possible; bfloat16 becomes float32."""
    host = flat.detach().cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy()


def from_host(array: NDArray[Any]) -> Tensor:
    """Return a tensor in the memory of an array, which must be writable."""
    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]


def _codec(layout: Layout, codec: str | ValueCodec) -> str | ValueCodec:
    return str(layout.dtype).removeprefix("torch.") if codec == "same" else codec
