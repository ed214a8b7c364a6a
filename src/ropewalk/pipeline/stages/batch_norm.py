"""Batch normalisation whose running statistics are those of the whole mini-batch, though it comes in micro-batches.

Each micro-batch is normalised by its own statistics. Their sums are pooled over the micro-batches of an update, and
over replicas; the update commits them once, as training on the whole mini-batch would (mean, unbiased variance, one
more batch tracked). Recomputation collects nothing. DeferredBatchNorm of torchgpipe works likewise.

    micro-batch   n, mean, var of the batch normalisation itself, at no cost; spread = (n - 1) var
    pooled        n = n1 + n2, mean = (n1 mean1 + n2 mean2) / n,
                  spread = spread1 + spread2 + n1 n2 / n (mean2 - mean1)²
    committed     mean, spread / (n - 1)

This is the pooled sum and sum of squares without their cancellation (Chan, Golub, LeVeque 1979, equation 2.1). All of
it is computed in float64 and rounded once, so that the order of the micro-batches makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.pipeline.tracing.computing import plain_batch_norm
from ropewalk.pipeline.tracing.stage_program import BatchNormCall


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and spread of the values of each channel; the moments of two sets pool to those of their union."""

    count: int
    mean: Tensor
    spread: Tensor
    """Sum of the squares of the distances from the mean; float64, shape (channels,)."""

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        mean = (self.count * self.mean + other.count * other.mean) / count
        distance = other.mean - self.mean
        between = self.count * other.count / count * distance * distance
        return Moments(count, mean, self.spread + other.spread + between)

    @property
    def variance(self) -> Tensor:
        """The unbiased variance of each channel, shape (channels,)."""
        return self.spread / (self.count - 1)


class DeferredBatchNorm:
    """Replaces the batch normalisation of a stage's program (`computing.replaced(batch_norm=...)`)."""

    def __init__(self, norms: tuple[BatchNormCall, ...]) -> None:
        self._norms = {norm.name: norm for norm in norms}
        self.moments: dict[str, Moments] = {}
        """Moments collected since the last commit, by the names of modules."""
        self.is_collecting = True
        """False while a forward is recomputed."""

    def __call__(
        self,
        name: str,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        num_batches_tracked: Tensor | None,
        training: bool,
        momentum: float | None,
        eps: float,
    ) -> Tensor:
        if not training or running_mean is None or running_var is None:
            return plain_batch_norm(
                name, input, weight, bias, running_mean, running_var, num_batches_tracked, training, momentum, eps
            )
        count = input.numel() // input.shape[1]
        # With momentum 1 the running statistics become those of this batch. They are not the module's buffers: those
        # change at the update, when micro-batches may be in flight whose backward needs the old values.
        mean, variance = torch.zeros_like(running_mean), torch.zeros_like(running_var)
        result = functional.batch_norm(input, mean, variance, weight, bias, True, 1.0, eps)
        if self.is_collecting:
            moments = Moments(count, mean.double(), (count - 1) * variance.double())
            self.moments[name] = self.moments[name] + moments if name in self.moments else moments
        return result

    def take(self) -> dict[str, Moments]:
        """Return the moments collected since the last call."""
        moments, self.moments = self.moments, {}
        return moments

    def commit(self, moments: Mapping[str, Moments], buffers: Mapping[str, Tensor]) -> None:
        """Update the running statistics in `buffers` with the moments pooled over an update."""
        for name, pooled in moments.items():
            norm = self._norms[name]
            factor = norm.momentum
            if norm.num_batches_tracked is not None:
                num_batches = buffers[norm.num_batches_tracked].add_(1)
                if factor is None:  # the plain average over all mini-batches
                    factor = 1.0 / float(num_batches)
            for buffer, value in ((norm.running_mean, pooled.mean), (norm.running_var, pooled.variance)):
                share = factor or 0.0
                buffers[buffer].copy_((1.0 - share) * buffers[buffer].double() + share * value)
