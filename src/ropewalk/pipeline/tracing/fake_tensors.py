"""Tracing a model whose parameters are on meta: fake tensors replace all its tensors during tracing.

    parameter on meta ─┐
    buffer            ─┼──▶ a fake tensor: claims to be on the CPU, has shape, strides and gradient, and no memory
    example input     ─┘

Tensors on meta cannot be used directly: tensors that a forward makes (`torch.arange(n)`) are on the CPU, and cannot be
combined with them. Fake tensors are described in torch's manual (torch.compiler_fake_tensor) under a path with an
underscore; only this module imports it. Constants of the model that are not buffers stay as they are, with their
values.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.captured import Captured
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.named_tensors import table_of


def is_numberless(model: nn.Module) -> bool:
    """Return whether a parameter or buffer of the model is on meta, without values."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor is fake, so that its values cannot be read."""
    return isinstance(tensor, FakeTensor)


class Fakes:
    """Fake tensors, one for each real tensor.

    Attributes:
        mode: the context in which results computed from them are fake as well.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        """Each with the real tensor, which is kept so that its id is not reused."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return the fake tensor for a tensor; it is on the CPU if the tensor is on meta."""
        if id(tensor) not in self._made:
            device = "cpu" if tensor.is_meta else tensor.device
            with self.mode:
                empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                if isinstance(tensor, nn.Parameter):
                    empty = nn.Parameter(empty, tensor.requires_grad)
                elif tensor.requires_grad:
                    empty.requires_grad_()
            self._made[id(tensor)] = tensor, empty
        return self._made[id(tensor)][1]


@contextmanager
def stand_ins(model: nn.Module, inputs: ModelInputs) -> Generator[FakeTensorMode]:
    """Replace all parameters, buffers and example inputs by fake tensors within the block.

    Yields:
        The context in which results computed from them are fake as well.
    """
    fakes = Fakes()
    kept: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
    example = inputs.example
    for module in model.modules():
        for table in (table_of(module, "_parameters"), table_of(module, "_buffers")):
            kept += [(table, name, tensor) for name, tensor in table.items() if tensor is not None]
    try:
        for table, name, tensor in kept:
            table[name] = fakes.of(tensor)
        _gather_weights(model)
        inputs.example = tuple(map(fakes.of, example))
        yield fakes.mode
    finally:
        inputs.example = example
        for table, name, tensor in kept:
            table[name] = tensor
        _gather_weights(model)


def _gather_weights(model: nn.Module) -> None:
    """Rebuild the lists of weights that recurrent layers keep."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            recurrent: Any = module
            recurrent._flat_weights = [getattr(recurrent, name, None) for name in recurrent._flat_weights_names]


def check_constants(model: nn.Module, captured: Captured) -> None:
    """Refuse a graph with a constant that has no values: stages could not be given it.

    Raises:
        NotTraceable: there is such a constant.
    """
    for target, value in captured.attributes.items():
        if isinstance(value, Tensor) and (value.is_meta or is_fake(value)):
            nodes = [node for node in captured.graph.nodes if node.op == "get_attr" and str(node.target) == target]
            line = captured.sites[nodes[0]].line if nodes and nodes[0] in captured.sites else ""
            raise NotTraceable(
                f"{type(model).__name__} has a constant of shape {tuple(value.shape)} on the device 'meta', without "
                f"numbers{f' (used at {line})' if line else ''}: it was built on that device. Give the trainer the "
                f"function that builds it, which is then run so that constants and buffers have their numbers"
            )


__all__ = ["Fakes", "check_constants", "is_fake", "is_numberless", "stand_ins"]
