"""The batch normalisation of traced programs, which others may want to compute in their own way.

    program ──▶ computing.batch_norm("layer1.0.bn2", x, ...) ──▶ torch's, or what `replaced` put there

A executor of micro-batches puts one there that collects sums, and commits the running
statistics once per mini-batch and not while it recomputes (docs/theory.md, "Batch normalisation").
Every batch normalisation of a traced program passes here, in graphs of ATen calls, in
modules that run untraced, and in modules within those.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F


class BatchNorm(Protocol):
    """As `torch.nn.functional.batch_norm`, together with counting the batch.

    `name` is the path of the module, "layer1.0.bn2". `training` says whether to normalise by the statistics of this
    batch; then the running ones are to be updated, if there are any, and `num_batches_tracked` too. `momentum` None:
    the running statistics are the plain averages over all batches.
    """

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
        /,
    ) -> Tensor: ...


def plain_batch_norm(
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
    """What `torch.nn.BatchNorm2d` and its kin do."""
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(num_batches_tracked)
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum or 0.0, eps)


_batch_norm: ContextVar[BatchNorm] = ContextVar("batch_norm", default=plain_batch_norm)


@contextmanager
def replaced(*, batch_norm: BatchNorm) -> Generator[None]:
    """Put another function in the place of torch's for the programs that this thread runs within."""
    token = _batch_norm.set(batch_norm)
    try:
        yield
    finally:
        _batch_norm.reset(token)


def batch_norm(name: str, input: Tensor, *rest: Any) -> Tensor:
    """What programs call, with the arguments of `BatchNorm`."""
    return _batch_norm.get()(name, input, *rest)
