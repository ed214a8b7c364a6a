"""Gradients as bytes: one message per bucket, sparse or dense.

    [kind][codec][options of the codec][number of components] [indices] [values]
       1      1    4 if it has levels      1 to 5 (LEB128)

`kind` is the coding of the indices: the smallest is used, by sizes that are computed before anything is coded. A member
that has nothing to send sends no bytes at all. Little-endian throughout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.kernels.selection import Floats, Indices, Selection
from ropewalk.exchange.message import Message
from ropewalk.exchange.wire import INDEX_CODINGS
from ropewalk.exchange.wire.bits import Bytes
from ropewalk.exchange.wire.values import AsBfloat16, AsFloats, Levels, ValueCodec, value_codec

Readable = bytes | bytearray | memoryview | Bytes
"""Types of received bytes."""
EVERY = 0
"""The kind of messages with all components, which have no indices."""

_CODECS: dict[int, ValueCodec] = {
    0: AsFloats("float64"),
    1: AsFloats("float32"),
    2: AsFloats("float16"),
    3: AsBfloat16(),
}
_LEVELS = 4
_OPTIONS = struct.Struct("<HH")


def pack_sparse(
    layout: Layout,
    indices: NDArray[np.integer],
    values: Floats,
    codec: str | ValueCodec = "same",
    seed: Sequence[int] = (0,),
) -> Message:
    """Encode some components of a bucket; the message is empty if there are none.

    Args:
        layout: layout of the bucket.
        indices: ascending, without repetition, below `layout.numel`.
        values: one for each index; float64, float32 or float16.
        codec: the encoding of values, see `wire.values`.
        seed: for codecs that round stochastically.

    Returns:
        The message.

    Raises:
        ValueError: the indices do not ascend or are out of range, or their number is not that of the values.
        ExchangeInvalid: the codec is unknown, or the bucket has more components than an index can represent.
    """
    numel = layout.numel
    if numel >= 1 << 31:
        raise ExchangeInvalid(f"a sparse message says which of 2^31 components it means; the bucket has {numel}")
    if len(indices) != len(values):
        raise ValueError(f"{len(indices)} indices cannot have {len(values)} values")
    if not len(indices):
        return Message(np.empty(0, np.uint8), {})
    at = np.ascontiguousarray(indices, np.int32)
    if at[0] < 0 or at[-1] >= numel or (at[1:] <= at[:-1]).any():
        raise ValueError(f"indices ascend within the {numel} components of the bucket; these do not")
    kind, index_bytes = _coded(at, numel)
    return _message(layout, kind, at, index_bytes, values, codec, seed)


def unpack_sparse(data: Readable, numel: int, dtype: torch.dtype = torch.float32) -> Selection:
    """Decode a message of `pack_sparse` or `pack_dense`.

    Args:
        data: bytes of the message; an empty message has no components.
        numel: number of components of the bucket.
        dtype: torch.float64 for float64 values, any other dtype for float32.

    Returns:
        Ascending indices and their values, in memory of their own.

    Raises:
        MessageCorrupt: no encoder of a bucket of this size can have made these bytes.
    """
    kind = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    if not len(data):
        return Selection(np.empty(0, np.int32), np.empty(0, kind))
    received = np.frombuffer(data, np.uint8)
    try:
        return _unpacked(received, numel, kind)
    except ValueError as error:
        raise MessageCorrupt(
            f"{received.size} bytes are not a message for a bucket with {numel} components: {error}"
        ) from error


def pack_dense(layout: Layout, values: Floats, codec: str | ValueCodec = "same", seed: Sequence[int] = (0,)) -> Message:
    """Encode all components of a bucket, in their order.

    Args:
        layout: layout of the bucket.
        values: one for each component; float64, float32 or float16.
        codec: the encoding of values, see `wire.values`.
        seed: for codecs that round stochastically.

    Raises:
        ValueError: the number of values is not that of the components.
    """
    if len(values) != layout.numel:
        raise ValueError(f"the bucket has {layout.numel} components, not {len(values)}")
    return _message(layout, EVERY, None, np.empty(0, np.uint8), values, codec, seed)


def _coded(indices: Indices, numel: int) -> tuple[int, Bytes]:
    if indices.size == numel:
        return EVERY, np.empty(0, np.uint8)
    coded = {kind: coding.plan(indices, numel) for kind, coding in INDEX_CODINGS.items()}
    kind = min(coded, key=lambda kind: coded[kind].size_bytes)
    return kind, coded[kind].write()


def _message(
    layout: Layout,
    kind: int,
    indices: Indices | None,
    index_bytes: Bytes,
    values: Floats,
    codec: str | ValueCodec,
    seed: Sequence[int],
) -> Message:
    chosen = value_codec(codec, values.dtype)
    body = chosen.encode(values, seed)
    header = np.frombuffer(bytes([kind]) + _codec_bytes(chosen) + _leb128(len(values)), np.uint8)
    data = np.concatenate([header, index_bytes, body])
    return Message(data, _by_layer(layout, indices, header.size, data.size), len(values))


def _by_layer(layout: Layout, indices: Indices | None, header_size: int, size: int) -> dict[str, int]:
    """Return bytes by parameter, in proportion to components; header and rounding count for the first that sends."""
    ends = np.array([part.stop for part in layout.slices.values()])
    upto = ends if indices is None else np.searchsorted(indices, ends)
    counts = np.diff(upto, prepend=0)
    shares = counts * (size - header_size) // max(int(upto[-1]), 1)
    layers = {name: int(share) for name, share, count in zip(layout.names, shares, counts, strict=True) if count}
    layers[next(iter(layers))] += size - sum(layers.values())
    return layers


def _unpacked(data: Bytes, numel: int, dtype: np.dtype[Any]) -> Selection:
    if data.size < 3:
        raise ValueError("there is no header")
    kind = int(data[0])
    codec, start = _codec(data)
    count, start = _read_leb128(data, start)
    if not 1 <= count <= numel:
        raise ValueError(f"it says that it has {count} components")
    values_start = data.size - codec.size_bytes(count)
    if values_start < start:
        raise ValueError(f"{count} values take {codec.size_bytes(count)} bytes")
    index_bytes = data[start:values_start]
    if kind == EVERY:
        if count != numel or index_bytes.size:
            raise ValueError(f"it says that it has all components, and {count}")
        indices = np.arange(numel, dtype=np.int32)
    elif kind in INDEX_CODINGS:
        indices = INDEX_CODINGS[kind].decode(index_bytes, count, numel)
    else:
        raise ValueError(f"its kind is {kind}")
    return Selection(indices, codec.decode(data[values_start:], count, dtype))


def _codec_bytes(codec: ValueCodec) -> bytes:
    if isinstance(codec, Levels):
        return bytes([_LEVELS]) + _OPTIONS.pack(codec.levels, codec.group)
    for number, known in _CODECS.items():
        if known == codec:
            return bytes([number])
    raise ExchangeInvalid(f"messages cannot say that their values are {codec!r}")


def _codec(data: Bytes) -> tuple[ValueCodec, int]:
    """Return the codec of a message, and the position of its number of components."""
    number = int(data[1])
    if number == _LEVELS:
        if data.size < 2 + _OPTIONS.size:
            raise ValueError("it ends within its header")
        levels, group = cast(tuple[int, int], _OPTIONS.unpack(data[2 : 2 + _OPTIONS.size].tobytes()))
        return Levels(levels, group), 2 + _OPTIONS.size
    if number not in _CODECS:
        raise ValueError(f"its codec is {number}")
    return _CODECS[number], 2


def _leb128(number: int) -> bytes:
    """Encode a number with seven bits per byte, lowest first; the highest bit of a byte says that more follow."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_leb128(data: Bytes, start: int) -> tuple[int, int]:
    number = 0
    for at, byte in enumerate(data[start : start + 5].tolist()):
        number |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return number, start + at + 1
    raise ValueError("its number of components does not end")
