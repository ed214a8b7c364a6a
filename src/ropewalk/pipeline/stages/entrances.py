"""The entry of values from other stages into a stage's graph, where their gradients are collected unchanged.

The tensors of a value are leaves, and autograd stores a gradient in a leaf's `.grad`: the tensor itself, at no cost, if
its strides are the leaf's, else a copy with the leaf's strides. Kernels add in another order for other strides, so such
a copy could differ in its bits from the gradient of a model that is not cut. A hook keeps the gradients whose strides
differ. Links must keep sizes and strides too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.pipeline.tracing.trees import tensors_of


class Entrance:
    """The tensors of one value, whose gradients are collected during the backward."""

    __slots__ = ("_odd", "_tensors")

    def __init__(self, value: Any) -> None:
        self._tensors = tensors_of(value)
        self._odd: dict[int, Tensor] = {}
        """Gradients whose strides differ from their leaf's, by position."""
        if torch.is_grad_enabled():
            for position, tensor in enumerate(self._tensors):
                if tensor.requires_grad:
                    _watch(tensor, position, self._odd)

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradient of each tensor; None if it has none."""
        return tuple(self._odd.get(position, tensor.grad) for position, tensor in enumerate(self._tensors))


def _watch(leaf: Tensor, position: int, odd: dict[int, Tensor]) -> None:
    strides = leaf.stride() if _is_dense(leaf) else None

    def keep_if_odd(gradient: Tensor) -> None:  # no reference to the leaf: the cycle would keep the graph alive
        if gradient.stride() != strides:
            odd[position] = gradient

    leaf.register_hook(keep_if_odd)  # pyright: ignore[reportUnknownMemberType]


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a gradient with the tensor's strides becomes its `.grad` without a copy."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
