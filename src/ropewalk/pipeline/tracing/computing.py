"""The batch normalisation of traced programs, which executors may replace.

    program ──▶ computing.batch_norm("layer1.0.bn2", x, ...) ──▶ torch's, or the function given to `replaced`

An executor of micro-batches replaces it by a function that collects sums, and updates the running statistics once per
mini-batch and not in recomputations (docs/theory.md, "Batch normalisation"). Every batch normalisation of a traced
program calls this function, in graphs of ATen calls, in modules that run untraced, and in modules within those.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F


class BatchNorm(Protocol):
    """The signature of `torch.nn.functional.batch_norm`, with the module's name and the counter of batches.

    `name` is the path of the module, "layer1.0.bn2". `training` says whether to normalise by the statistics of this
    batch; the running statistics, if there are any, and `num_batches_tracked` are then to be updated. With `momentum`
    None the running statistics are the plain averages over all batches.
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
    """Compute a batch normalisation as `torch.nn.BatchNorm2d` and its variants do."""
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(num_batches_tracked)
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum or 0.0, eps)


_TRAINING = 5
"""The place of `training` among the arguments after the input."""
_batch_norm: ContextVar[BatchNorm] = ContextVar("batch_norm", default=plain_batch_norm)


@contextmanager
def replaced(*, batch_norm: BatchNorm) -> Generator[None]:
    """Replace the batch normalisation in the programs that this thread runs within the block."""
    token = _batch_norm.set(batch_norm)
    try:
        yield
    finally:
        _batch_norm.reset(token)


def batch_norm(name: str, input: Tensor, *rest: Any) -> Tensor:
    """Compute a batch normalisation; called by programs, with the arguments of `BatchNorm`.

    Raises:
        ValueError: in training, the input has one value of each channel.
    """
    if rest[_TRAINING] and input.numel() // input.shape[1] < 2:
        raise ValueError(
            f"batch normalisation {name!r} gets one value of each channel, an input of shape {tuple(input.shape)}, "
            f"as this micro-batch has one sample, and one value has no variance. Give mini-batches of at "
            f"least two samples for each micro-batch (DataLoader(drop_last=True) leaves out a short last one), or "
            f"make fewer micro-batches"
        )
    return _batch_norm.get()(name, input, *rest)
