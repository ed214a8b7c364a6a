"""Pieces: the units that travel to a parameter server, and the shard of each. Pure.

    model        a: 100 rows    b    c         the order of the model, which is the order of priority:
    pieces      [a 0:60][a 60:100  b  c]       the next forward needs the first layers first
    shards          0           1

A piece is small enough for an urgent one to overtake others in flight (BytePS: Jiang et al., "A Unified Architecture
for Accelerating Distributed DNN Training", OSDI 2020, section 4; Peng et al., "A Generic Communication Scheduler for
Distributed DNN Training Acceleration", SOSP 2019). Large parameters are cut along their first dimension, so that
matrices stay matrices; small ones share a piece. State is kept by parameter, so it survives another division.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry, Layout, check_names

PIECE_BYTES = 4 << 20
"""As in BytePS: large enough for the bandwidth of a link, small enough to be overtaken."""
_WORTH_BYTES = 64 << 10
"""Pieces are not made smaller than this for the sake of balance: each costs two calls."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a parameter, or all of it.

    Attributes:
        name: name of the parameter.
        start: index of its first component in the flat parameter.
        stop: index after its last component.
    """

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class ModelPiece:
    """A unit that travels as a whole.

    Attributes:
        key: its number; smaller ones are more urgent.
        shard: index of the server that has it.
        parts: parts of parameters, in the order of the layout.
        layout: layout of its flat buffer; parts of cut parameters have names such as "fc.weight[0:600]".
    """

    key: int
    shard: int
    parts: tuple[Part, ...]
    layout: Layout

    @property
    def on_host(self) -> Layout:
        """The same layout in the memory of a server."""
        return Layout(tuple(replace(entry, device="cpu") for entry in self.layout.entries))

    def by_part(self, named: Mapping[str, Tensor]) -> list[tuple[Part, str, Tensor]]:
        """Return a state by names of the layout, as encoders return it, with the parts that the names stand for."""
        pairs = zip(self.parts, self.layout.names, strict=True)
        return [(part, name, named[name]) for part, name in pairs if name in named]


def cut_pieces(
    entries: Iterable[BucketEntry], num_shards: int, piece_bytes: int = PIECE_BYTES
) -> tuple[ModelPiece, ...]:
    """Cut a model into pieces, and distribute them over shards with about equal numbers of bytes.

    Args:
        entries: the parameters, in the order of the model.
        num_shards: number of shards of the server.
        piece_bytes: maximum size of a piece in bytes, unless a single row is larger; less where shards could not be
            balanced.

    Returns:
        The pieces in the order of the model.

    Raises:
        ValueError: there are no parameters, or two have the same name.
        ExchangeInvalid: there are no shards, or the size is below 1.
    """
    parameters = list(entries)
    check_names(parameters)
    if num_shards < 1 or piece_bytes < 1:
        raise ExchangeInvalid(
            f"a parameter server has 1 shard or more and pieces of 1 byte or more, not {num_shards} and {piece_bytes}"
        )
    total_bytes = sum(entry.size_bytes for entry in parameters)
    limit = min(piece_bytes, max(_WORTH_BYTES, -(-total_bytes // (4 * num_shards))))
    groups = _fused([cut for entry in parameters for cut in _rows(entry, limit)], limit)
    layouts = [Layout(tuple(entry for _, entry in group)) for group in groups]
    shards = balanced([layout.size_bytes for layout in layouts], num_shards)
    return tuple(
        ModelPiece(key, shard, tuple(part for part, _ in group), layout)
        for key, (group, layout, shard) in enumerate(zip(groups, layouts, shards, strict=True))
    )


def balanced(sizes: Sequence[int], num_shards: int) -> list[int]:
    """Return a shard for each size, so that sums are about equal: the largest first, each to the least loaded shard."""
    loads = [0] * num_shards
    shards = [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        shards[at] = loads.index(min(loads))
        loads[shards[at]] += sizes[at]
    return shards


def _rows(entry: BucketEntry, limit: int) -> list[tuple[Part, BucketEntry]]:
    """Cut a parameter along its first dimension if it is larger than a piece."""
    if entry.size_bytes <= limit or not entry.shape or entry.numel == 0:
        return [(Part(entry.name, 0, entry.numel), entry)]
    num_rows, *rest = entry.shape
    row = torch.Size(rest).numel()
    num_cuts = min(num_rows, -(-entry.size_bytes // limit))
    edges = [cut * num_rows // num_cuts for cut in range(num_cuts + 1)]
    return [
        (
            Part(entry.name, start * row, stop * row),
            replace(entry, name=f"{entry.name}[{start}:{stop}]", shape=(stop - start, *rest)),
        )
        for start, stop in itertools.pairwise(edges)
    ]


def _fused(cuts: Sequence[tuple[Part, BucketEntry]], limit: int) -> list[list[tuple[Part, BucketEntry]]]:
    """Group neighbouring cuts of one dtype and device that fit into one piece."""
    groups: list[list[tuple[Part, BucketEntry]]] = []
    size, kind = 0, None
    for part, entry in cuts:
        if not groups or (entry.dtype, entry.device) != kind or size + entry.size_bytes > limit:
            groups.append([])
            size, kind = 0, (entry.dtype, entry.device)
        groups[-1].append((part, entry))
        size += entry.size_bytes
    return groups


def merged_state(
    states: Iterable[tuple[ModelPiece, Mapping[str, Mapping[str, Tensor]]]],
) -> dict[str, dict[str, Tensor]]:
    """Merge states of pieces, `{"error": {"fc.weight[0:600]": ...}}`, into flat tensors by whole parameters.

    A state with another number of components than its part of the parameter (the factors of `LowRank`) keeps the part's
    own name, and so does not survive another division.

    Args:
        states: each piece with its state, by kind and then by name of the piece's layout.
    """
    parts: dict[str, dict[str, list[tuple[int, Tensor]]]] = {}
    for piece, state in states:
        for kind, named in state.items():
            for part, cut_name, tensor in piece.by_part(named):
                whole = tensor.numel() == part.stop - part.start
                name, start = (part.name, part.start) if whole else (cut_name, 0)
                parts.setdefault(kind, {}).setdefault(name, []).append((start, tensor))
    return {kind: {name: _joined(found) for name, found in by.items()} for kind, by in parts.items()}


def _joined(found: list[tuple[int, Tensor]]) -> Tensor:
    if len(found) == 1:
        return found[0][1]
    return torch.cat([tensor.reshape(-1) for _, tensor in sorted(found, key=lambda at: at[0])])


def state_of_piece(piece: ModelPiece, state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Select the state of a piece from a state by whole parameters, under the names of the piece's layout.

    Args:
        piece: the piece.
        state: by kind and then by parameter.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for kind, named in state.items():
        found[kind] = {}
        for part, cut_name in zip(piece.parts, piece.layout.names, strict=True):
            if part.name in named:
                tensor = named[part.name]
                found[kind][cut_name] = tensor if cut_name == part.name else tensor.reshape(-1)[part.start : part.stop]
            elif cut_name in named:
                found[kind][cut_name] = named[cut_name]
    return found


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a flat tensor, little-endian as in memory; a view of its memory if it is on the CPU."""
    # Numpy's stubs for Python 3.11 do not declare arrays as buffers.
    return memoryview(cast("Any", tensor.detach().contiguous().cpu().view(torch.uint8).numpy()))


def tensor_of(data: memoryview | bytes, dtype: torch.dtype) -> Tensor:
    """Return the tensor whose bytes `bytes_of` returned, flat, in memory of its own."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
