"""The queue of weight gradients that the first half of a split backward (I) leaves to the second (W).

`split_backward` explains both. W is a backward of its own, over small nodes, in the order in which I reached the calls.
So sums, hooks and `.grad` are autograd's own, and bit-equal to a whole backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.autograd.graph import GradientEdge

_GROUP_BYTES = 2**20
"""Bytes of weights up to which calls share a node of W: a node costs some 20 us, and gradients live until their node is
done."""
Parameters = tuple[Tensor, Tensor | None]
"""Weight and bias of a call, or their gradients."""


@dataclass(slots=True, eq=False)  # frozen would cost a microsecond a call
class DeferredCall:
    """A call whose I is done, and whose W is not."""

    inputs: Tensor
    gradient: Tensor
    """The gradient of its output."""
    parameters: Parameters
    """Its weight and bias, which are leaves."""
    compute: Callable[[], Parameters]
    """Computes the gradients of the parameters."""


class WeightQueue:
    """The weight gradients that the I of one micro-batch has left to W.

    The backward through calls made under `deferred_weights(queue)` fills it; `run` or `gradients` empties it.
    """

    def __init__(self) -> None:
        # Deferred calls depend on this leaf, not on their weights: otherwise the weights' hooks would run in I, without
        # gradients.
        self.anchor = torch.zeros((), requires_grad=True)
        self._calls: list[DeferredCall] = []

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps alive until W: input and output gradient of each call."""
        return tuple(tensor for call in self._calls for tensor in (call.inputs, call.gradient))

    def input_gradients(
        self,
        outputs: Sequence[Tensor] | Sequence[GradientEdge],
        leaves: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        """Do I: like `torch.autograd.grad`, but also reach deferred calls that lie on no path to the leaves.

        Args:
            outputs: results of calls made under `deferred_weights(queue)`, or their gradient edges.
            leaves: the inputs, and the parameters (some do W inside I).
            gradients: one for each output, with its shape and dtype; None as in `torch.autograd.grad`.

        Returns:
            The gradient of each leaf; None if it has none, or if all of it is deferred.
        """
        wanted = [*leaves, self.anchor]
        return torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)[:-1]

    def run(self) -> None:
        """Compute the weight gradients and add them to the leaves' `.grad`, with their hooks, as `backward` does."""
        if roots := self._roots():
            torch.autograd.backward(roots, [torch.zeros_like(root) for root in roots])

    def gradients(self, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Compute the weight gradients and return them, as `torch.autograd.grad(..., allow_unused=True)` does.

        Args:
            leaves: the leaves whose gradients are wanted; gradients of other leaves are not computed.

        Returns:
            The gradient of each leaf, with its shape; None if no deferred call read it.
        """
        if not (roots := self._roots()) or not leaves:
            return (None,) * len(leaves)
        return torch.autograd.grad(roots, leaves, [torch.zeros_like(root) for root in roots], allow_unused=True)

    def add(self, call: DeferredCall) -> None:
        """Add the W of a call; for the autograd functions of `split_backward`."""
        if torch.is_grad_enabled():
            raise RuntimeError("a split backward has no second derivative: call it without create_graph=True")
        self._calls.append(call)

    def _roots(self) -> list[Tensor]:
        """Return scalars whose backwards are the W of all calls, and empty the queue."""
        groups: list[list[DeferredCall]] = []
        size_bytes = _GROUP_BYTES
        for call in self._calls:
            if size_bytes >= _GROUP_BYTES:
                size_bytes = 0
                groups.append([])
            groups[-1].append(call)
            size_bytes += sum(one.nbytes for one in call.parameters if one is not None)
        self._calls = []
        with torch.enable_grad():
            # Autograd runs the node made last first: this gives the order in which I reached the calls.
            return [cast(Any, _WeightGradients).apply(group, *_flat(group)) for group in reversed(groups)]


class _WeightGradients(Function):
    """A node of W: a scalar computed from weights and biases, whose backward does the W of some calls."""

    @staticmethod
    def forward(ctx: Any, calls: list[DeferredCall], *parameters: Tensor | None) -> Tensor:
        ctx.calls = calls
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = [None]
        calls: list[DeferredCall] = ctx.calls
        calls.reverse()
        while calls:  # the tensors that a call keeps are freed as soon as it is done
            call = calls.pop()
            for gradient, leaf in zip(call.compute(), call.parameters, strict=True):
                found.append(None if gradient is None or leaf is None else gradient.to(leaf.dtype))
        return tuple(found)


def _flat(calls: list[DeferredCall]) -> Iterator[Tensor | None]:
    return (parameter for call in calls for parameter in call.parameters)
