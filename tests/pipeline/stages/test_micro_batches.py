"""Mini-batches are cut along their samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.stages.micro_batches import split
from ropewalk.pipeline.tracing.trees import flatten


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12))
def test_pieces_hold_all_samples_in_order_and_differ_by_at_most_one(num_samples: int, num_pieces: int) -> None:
    x, y = torch.arange(num_samples), torch.arange(num_samples) * 2
    pieces = split({"input.x": x}, {"labels": (y, 3)}, num_pieces, step=7)
    assert len(pieces) == min(num_pieces, num_samples)
    assert torch.equal(torch.cat([piece.inputs["input.x"] for piece in pieces]), x)
    assert torch.equal(torch.cat([piece.labels["labels"][0] for piece in pieces]), y)
    sizes = [piece.num_samples for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert [(piece.step, piece.index) for piece in pieces] == [(7, index) for index in range(len(pieces))]


def test_what_is_not_as_long_as_the_batch_goes_whole_to_each_piece() -> None:
    mask, scale = torch.ones(5, 5), torch.tensor(2.0)
    pieces = split({"input.x": torch.zeros(4, 5), "input.mask": mask, "input.scale": scale}, None, 2)
    for piece in pieces:
        assert piece.inputs["input.mask"] is mask
        assert piece.inputs["input.scale"] is scale
        assert piece.inputs["input.x"].shape == (2, 5)
        assert piece.labels is None


BOXES = [torch.zeros(num, 4) for num in (3, 4, 2, 5)]


@pytest.mark.parametrize(
    "labels", [BOXES, {"boxes": tuple(BOXES)}, [{"boxes": boxes, "scale": torch.tensor(1.0)} for boxes in BOXES]]
)
def test_a_list_with_tensors_for_each_sample_is_not_cut_here_and_there(labels: Any) -> None:
    # The boxes of a sample that had as many as there are samples were cut, and all others went to each micro-batch.
    x = {"input.x": torch.zeros(4, 3)}
    with pytest.raises(ValueError, match=r"4 samples, .* differ \(3, 4, 2, 5\).*Pad them .*micro_batches=1"):
        split(x, labels, 2)
    (piece,) = split(x, labels, 1)
    assert flatten(piece.labels)[0][0] is BOXES[0]


def test_fields_of_other_lengths_are_no_list_of_samples() -> None:
    fields = {"y": torch.zeros(3), "weights": torch.zeros(7), "mask": torch.zeros(3)}
    assert [len(piece.labels["y"]) for piece in split({"input.x": torch.zeros(3, 1)}, fields, 3)] == [1, 1, 1]
    pair = [torch.zeros(2), torch.zeros(7)]
    assert [len(piece.labels[0]) for piece in split({"input.x": torch.zeros(2, 1)}, pair, 2)] == [1, 1]


def test_what_cannot_be_cut_is_an_error_with_the_numbers() -> None:
    # All of it went to each micro-batch, and was compared with a part of the outputs.
    with pytest.raises(
        TypeError, match="labels hold a ndarray, which would go whole to each micro-batch; give tensors"
    ):
        split({"input.x": torch.zeros(4, 3)}, (torch.zeros(4), np.zeros(4)), 2)
    with pytest.raises(ValueError, match="no samples"):
        split({"input.x": torch.zeros(0, 3)}, None, 2)
    with pytest.raises(ValueError, match=r"input\.x: Tensor"):
        split({"input.x": torch.tensor(1.0)}, None, 2)
    with pytest.raises(ValueError, match="6 samples, but labels for 5"):
        split({"input.x": torch.zeros(6, 3)}, torch.zeros(5), 2)
