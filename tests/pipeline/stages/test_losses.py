"""Losses of micro-batches sum to the loss of the mini-batch, as they are declared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

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


def test_what_is_not_as_declared_is_an_error() -> None:
    with pytest.raises(ValueError, match="declared must be one of 'mean', 'sum', 'weighted', not 'median'"):
        Loss(torch.sum, "median")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"shape \(3,\)"):
        Loss(lambda out, _: out)(torch.zeros(3), None, 3)
    with pytest.raises(TypeError, match=r"returns \(total, weight\), but this one returned a tensor"):
        Loss(lambda out, _: out.sum(), "weighted")(torch.zeros(3), None, 3)
