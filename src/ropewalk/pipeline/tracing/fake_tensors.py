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


@contextmanager
def stand_ins(model: nn.Module, inputs: ModelInputs) -> Generator[FakeTensorMode]:
    """Let fake tensors be in the place of all parameters, buffers and example inputs.

    Yields:
        The context in which what is computed with them is fake as well.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    fakes: dict[int, Tensor] = {}
    kept: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
    example = inputs.example

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            device = "cpu" if tensor.is_meta else tensor.device
            with mode:
                empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                if isinstance(tensor, nn.Parameter):
                    empty = nn.Parameter(empty, tensor.requires_grad)
            fakes[id(tensor)] = empty
        return fakes[id(tensor)]

    for module in model.modules():
        for table in (table_of(module, "_parameters"), table_of(module, "_buffers")):
            kept += [(table, name, tensor) for name, tensor in table.items() if tensor is not None]
    try:
        for table, name, tensor in kept:
            table[name] = fake(tensor)
        for recurrent in (one for one in model.modules() if isinstance(one, nn.RNNBase)):
            _gather_weights(recurrent)
        inputs.example = tuple(map(fake, example))
        yield mode
    finally:
        inputs.example = example
        for table, name, tensor in kept:
            table[name] = tensor
        for recurrent in (one for one in model.modules() if isinstance(one, nn.RNNBase)):
            _gather_weights(recurrent)


def _gather_weights(recurrent: Any) -> None:
    """It keeps a list of its weights beside."""
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


__all__ = ["check_constants", "is_fake", "is_numberless", "stand_ins"]
