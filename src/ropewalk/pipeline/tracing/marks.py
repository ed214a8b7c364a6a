"""Marks in a model where its author wants it to be cut: `x = cut_here(x)`, read by the `fixed` partitioner."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

CUT_HERE = "cut_here"
"""The description of the operator that represents a mark."""

_exporting: ContextVar[bool] = ContextVar("exporting", default=False)


def cut_here(input: Tensor) -> Tensor:
    """Mark a place where a stage may end, and return the value itself.

    ```python
    def forward(self, x):
        x = cut_here(self.encoder(x))
        return self.decoder(x)
    ```

    Args:
        input: the value; any shape and dtype.

    Returns:
        The same tensor.
    """
    if isinstance(input, fx.Proxy):
        return cast(Tensor, input.tracer.create_proxy("call_function", cut_here, (input,), {}))
    return mark()(input) if _exporting.get() else input


def passed(input: Tensor) -> Tensor:
    """Return the value: a mark does nothing in a traced program."""
    return input


class CutHere(nn.Module):
    """`cut_here` as a module, for use among the children of an `nn.Sequential`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input itself."""
        return cut_here(input)


@contextmanager
def visible() -> Generator[None]:
    """Let marks appear in the graphs that `torch.export` makes within the block."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


@functools.cache
def mark() -> Callable[[Tensor], Tensor]:
    """Return the operation that represents a mark in an exported graph; it is never run."""

    def copied(input: Tensor) -> Tensor:
        return input.clone()

    make: Any = torch.library.custom_op("ropewalk::cut_here", copied, mutates_args=())
    make.register_fake(torch.empty_like)
    return cast("Callable[[Tensor], Tensor]", torch.ops.ropewalk.cut_here.default)  # pyright: ignore
