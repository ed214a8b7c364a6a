"""Pieces: every component of a model is in exactly one, shards have about as much, and state outlives another cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry
from ropewalk.exchange.parameter_server.pieces import (
    bytes_of,
    cut_pieces,
    merged_state,
    state_of_piece,
    tensor_of,
)

shapes = st.lists(st.integers(1, 12), max_size=3).map(tuple)
models = st.lists(shapes, min_size=1, max_size=6).map(
    lambda found: [BucketEntry(f"p{number}", shape) for number, shape in enumerate(found)]
)


@settings(max_examples=60, deadline=None)
@given(entries=models, num_shards=st.integers(1, 5), piece_bytes=st.integers(1, 500))
def test_every_component_is_in_exactly_one_piece(entries: list[BucketEntry], num_shards: int, piece_bytes: int) -> None:
    pieces = cut_pieces(entries, num_shards, piece_bytes)
    seen = {entry.name: torch.zeros(entry.numel) for entry in entries}
    for key, piece in enumerate(pieces):
        assert piece.key == key and 0 <= piece.shard < num_shards
        assert piece.layout.numel == sum(part.stop - part.start for part in piece.parts)
        for part in piece.parts:
            seen[part.name][part.start : part.stop] += 1
    assert all(bool((found == 1).all()) for found in seen.values())
    first_parts = [piece.parts[0].name for piece in pieces]
    assert first_parts == sorted(first_parts, key=[entry.name for entry in entries].index)


@settings(max_examples=60, deadline=None)
@given(entries=models, cuts=st.tuples(*[st.tuples(st.integers(1, 4), st.integers(1, 300))] * 2))
def test_a_state_by_parameter_outlives_another_cut(
    entries: list[BucketEntry], cuts: tuple[tuple[int, int], ...]
) -> None:
    first, second = (cut_pieces(entries, *cut) for cut in cuts)
    whole = {entry.name: torch.randn(entry.numel) for entry in entries}
    states = [(piece, state_of_piece(piece, {"error": whole})) for piece in first]
    merged = merged_state(states)
    again = merged_state((piece, state_of_piece(piece, merged)) for piece in second)
    for name, value in whole.items():
        assert torch.equal(again["error"][name].reshape(-1), value)


def test_large_parameters_are_cut_along_rows_and_shards_have_about_as_much() -> None:
    entries = [BucketEntry("embedding", (64_000, 16)), BucketEntry("weight", (900, 16)), BucketEntry("bias", (900,))]
    pieces = cut_pieces(entries, 4, 4 << 20)
    assert all(len(entry.shape) == 1 or entry.shape[1] == 16 for piece in pieces for entry in piece.layout.entries)
    loads = [sum(piece.layout.size_bytes for piece in pieces if piece.shard == shard) for shard in range(4)]
    assert max(loads) <= 1.1 * sum(loads) / 4
    assert pieces[0].layout.names[0] == "embedding[0:4000]"


def test_what_is_no_part_of_a_parameter_keeps_its_own_name() -> None:
    """The factor of a low rank approximation of 500 rows is none of 1000 rows."""
    piece, other = cut_pieces([BucketEntry("weight", (100, 8))], 2, 1600)
    factor = torch.randn(50, 2)
    merged = merged_state([(piece, {"Q": {piece.layout.names[0]: factor}}), (other, {})])
    assert torch.equal(state_of_piece(piece, merged)["Q"][piece.layout.names[0]], factor)
    assert state_of_piece(other, merged)["Q"] == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_travel_as_their_bytes(dtype: torch.dtype) -> None:
    flat = torch.randn(17).to(dtype)
    assert torch.equal(tensor_of(bytes(bytes_of(flat)), dtype), flat)
    assert tensor_of(b"", dtype).numel() == 0


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        cut_pieces([], 1)
    with pytest.raises(ValueError, match="the same name: p"):
        cut_pieces([BucketEntry("p", (1,)), BucketEntry("p", (2,))], 1)
    with pytest.raises(ExchangeInvalid, match="not 0 and 10"):
        cut_pieces([BucketEntry("p", (1,))], 0, 10)
