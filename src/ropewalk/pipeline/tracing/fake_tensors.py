"""Tracing a model whose parameters are on meta: fake tensors stand in for all its tensors meanwhile.

    parameter on meta ─┐
    buffer            ─┼──▶ a fake tensor: says that it is on the CPU, has shape, stride and gradient, and no memory
    example input     ─┘

Tensors on meta themselves would not do: what a forward makes (`torch.arange(n)`) is on the
CPU, and does not mix with them. Fake tensors are described in torch's manual
(torch.compiler_fake_tensor) under a path with an underscore; this module alone knows it.
Constants of the model that are no buffers stay as they are, with their numbers.
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
    """Whether a parameter or buffer of the model has no numbers."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def is_fake(tensor: Tensor) -> bool:
    """Whether it is a stand-in, of which nobody may ask for numbers."""
    return isinstance(tensor, FakeTensor)


class Fakes:
    """Stand-ins for tensors, one for each.

    Attributes:
        mode: the context in which what is computed with them is fake as well.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        #: With the tensors themselves, whose ids must stay theirs.
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The stand-in for a tensor; on the CPU for one that is on meta."""
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
    """Let fake tensors be in the place of all parameters, buffers and example inputs.

    Yields:
        The context in which what is computed with them is fake as well.
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
    """Recurrent layers keep lists of their weights beside."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            recurrent: Any = module
            recurrent._flat_weights = [getattr(recurrent, name, None) for name in recurrent._flat_weights_names]


def check_constants(model: nn.Module, captured: Captured) -> None:
    """Refuse a graph with a constant that has no numbers: nobody could tell them to the stages.

    Raises:
        NotTraceable: there is one.
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
