"""Where values of other stages enter a stage's graph, and their gradients are caught as they come.

A leaf's `.grad` gets the leaf's strides. Kernels add in another order for other strides, so
the gradient would not be, to the bit, the one of a model that is not cut. Links, too, must
keep sizes and strides.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from ropewalk.pipeline.stages.trees import map_tensors

#: For each tensor of a value its gradient; none before the backward has reached it, or if it has none.
Caught = list[list[Tensor]]


def entered(value: Any) -> tuple[Any, Caught]:
    """A value for a stage's program, and where the gradients of its tensors will be."""
    caught: Caught = []

    def enter(tensor: Tensor) -> Tensor:
        caught.append([])
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        return cast(Any, _Entrance).apply(tensor, caught[-1])

    return map_tensors(enter, value), caught


class _Entrance(Function):
    """The identity."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, caught: list[Tensor]) -> Tensor:
        ctx.caught = caught
        return leaf.detach()

    @staticmethod
    @once_differentiable  # its type has a positional ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[None, None]:
        ctx.caught.append(gradients[0])
        return None, None
