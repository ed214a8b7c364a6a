"""Losses of micro-batches sum to the loss of the mini-batch, as they are declared."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.stages.label_weights import LabelWeights
from ropewalk.pipeline.stages.losses import Loss


def over(loss: Loss, values: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The value of the step, and its gradient by the rule of the table: roots summed, then divided."""
    leaf = values.clone().requires_grad_()
    pieces = [loss(part, None, len(part)) for part in leaf.split(sizes)]
    sum((piece.root for piece in pieces[1:]), pieces[0].root).backward()
    assert leaf.grad is not None
    weights = [piece.weight for piece in pieces if piece.weight is not None]
    return loss.over([(p.value, p.weight) for p in pieces]).detach(), leaf.grad / sum(weights) if weights else leaf.grad


@pytest.mark.parametrize(
    ("declared", "function", "whole"),
    [
        ("mean", lambda out, _: (out**2).mean(), lambda out: (out**2).mean()),
        ("sum", lambda out, _: (out**2).sum(), lambda out: (out**2).sum()),
        ("weighted", lambda out, _: ((out * (out > 0)).sum(), (out > 0).sum()), lambda out: out[out > 0].mean()),
    ],
)
def test_uneven_pieces_give_the_loss_and_the_gradient_of_the_whole(declared: Any, function: Any, whole: Any) -> None:
    values = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value, gradient = over(Loss(function, declared), values, [5, 1, 3, 2])
    leaf = values.clone().requires_grad_()
    whole(leaf).backward()
    assert torch.allclose(value, whole(values))
    assert leaf.grad is not None and torch.allclose(gradient, leaf.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("declared", ["mean", "sum"])
def test_losses_of_16_bits_are_added_up_in_32(dtype: torch.dtype, declared: Any) -> None:
    # An evaluation over 2,000 mini-batches of 64 gave 0.13 in place of 1 with bfloat16, and infinity with float16.
    pieces: list[tuple[Tensor, float | None]] = [(torch.ones((), dtype=dtype), 64.0)] * 2000
    found = Loss(nn.MSELoss(reduction=declared), declared).over(pieces)
    assert float(found) == (1.0 if declared == "mean" else 2000.0)


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    # Nothing trained them, and nothing was said.
    centres = nn.Bilinear(4, 4, 1)
    with pytest.raises(
        ValueError, match=r"a Bilinear with 2 parameters that would not be trained.*'weight'.*a part of"
    ):
        Loss(centres)
    assert Loss(centres.requires_grad_(False)).declared == "mean"


def test_what_is_not_as_declared_is_an_error() -> None:
    with pytest.raises(ValueError, match="declared must be one of 'mean', 'sum', 'weighted', not 'median'"):
        Loss(torch.sum, "median")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"shape \(3,\)"):
        Loss(lambda out, _: out)(torch.zeros(3), None, 3)
    with pytest.raises(TypeError, match=r"returns \(total, weight\), but this one returned a tensor"):
        Loss(lambda out, _: out.sum(), "weighted")(torch.zeros(3), None, 3)


CLASS_WEIGHTS = torch.tensor([1.0, 5.0, 0.25], dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(CLASS_WEIGHTS, ignore_index=-1),
        nn.CrossEntropyLoss(CLASS_WEIGHTS, label_smoothing=0.1),
        nn.NLLLoss(CLASS_WEIGHTS),
        functional.cross_entropy,
        functools.partial(functional.nll_loss, weight=CLASS_WEIGHTS, ignore_index=-1),
    ],
)
@pytest.mark.parametrize("shape", [(11,), (11, 4)])
def test_a_mean_over_labels_that_count_differently_is_that_of_the_whole(function: Any, shape: tuple[int, ...]) -> None:
    # Weighted by their samples, micro-batches with few labels that count had too large a part.
    chance = torch.Generator().manual_seed(0)
    ignored = LabelWeights.of(function)
    assert ignored is not None
    labels = torch.randint(3, shape, generator=chance)
    labels[:5], labels[6::3] = ignored.ignored, ignored.ignored  # no label of the first micro-batch counts
    values = torch.randn(11, 3, *shape[1:], dtype=torch.float64, generator=chance)
    leaf, whole = values.clone().requires_grad_(), values.clone().requires_grad_()
    loss, sizes = Loss(function), [5, 1, 3, 2]
    pieces = [loss(*each, len(each[0])) for each in zip(leaf.split(sizes), labels.split(sizes), strict=True)]
    sum((piece.root for piece in pieces[1:]), pieces[0].root).backward()
    expected = function(whole, labels)
    expected.backward()
    assert leaf.grad is not None and whole.grad is not None
    assert torch.allclose(leaf.grad / sum(piece.weight or 0.0 for piece in pieces), whole.grad)
    assert torch.allclose(loss.over([(piece.value, piece.weight) for piece in pieces]), expected)
    assert all(bool(piece.value.isfinite()) for piece in pieces), "a warning of the first loss that is NaN is wrong"


@pytest.mark.parametrize(
    "function",
    [
        nn.MSELoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        functools.partial(functional.cross_entropy, reduction="sum"),
        lambda outputs, labels: functional.cross_entropy(outputs, labels),
    ],
)
def test_other_means_are_over_samples(function: Any) -> None:
    assert LabelWeights.of(function) is None


def test_labels_that_all_count_alike_weigh_as_many_as_their_samples() -> None:
    counting = LabelWeights.of(nn.CrossEntropyLoss())
    assert counting is not None
    assert counting.over(torch.zeros(5, 7, dtype=torch.int64), 5) == 5.0
    assert counting.over(torch.full((5, 3), 1 / 3), 5) == 5.0, "probabilities"
