"""Runs a model whole and in pieces, and compares: outputs, gradients, buffers, state of the generator, to the bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.pipeline.tracing import ModelGraph
from ropewalk.pipeline.tracing.trees import flatten


@dataclass
class Result:
    outputs: list[Any]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    generator: Tensor


def run_itself(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> Result:
    """One forward and backward of a copy of the model."""
    model = copy.deepcopy(model)
    torch.manual_seed(seed)
    args, kwargs = copy.deepcopy((tuple(args), dict(kwargs)))
    outputs = flatten(model(*args, **kwargs))[0]
    backward_from([leaf for leaf in outputs if isinstance(leaf, Tensor)])
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return Result(outputs, gradients, dict(model.named_buffers()), torch.get_rng_state())


def run_cut(
    graph: ModelGraph, stages: Sequence[Sequence[str]], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int
) -> Result:
    """One forward of the stages in order, and one backward in reverse, nothing shared but what crosses the cuts."""
    programs = [graph.stage_program(stage) for stage in stages]
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in graph.parameters.items()}
    buffers = {name: tensor.detach().clone() for name, tensor in graph.buffers.items()}
    values = graph.bind(*copy.deepcopy(tuple(args)), **copy.deepcopy(dict(kwargs)))
    runs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    torch.manual_seed(seed)
    for program in programs:
        received = {id: detached(values[id]) for id in program.inputs}
        made = program(received, leaves, buffers)
        assert tuple(made) == program.outputs
        values.update(made)
        runs.append((received, made))
    generator = torch.get_rng_state()
    outputs = flatten(values[graph.output])[0]
    waiting: dict[str, list[Tensor | None]] = {}
    directions = {graph.output: [direction(leaf) if isinstance(leaf, Tensor) else None for leaf in outputs]}
    gradients: dict[str, Tensor | None] = dict.fromkeys(leaves)
    for program, (received, made) in reversed(list(zip(programs, runs, strict=True))):
        pairs: list[tuple[Tensor, Tensor]] = []
        for id, value in made.items():
            tensors = flatten(value)[0]
            for given in (directions.get(id), waiting.get(id)):
                for tensor, gradient in zip(tensors, given or [None] * len(tensors), strict=True):
                    if gradient is not None and tensor.requires_grad:
                        pairs.append((tensor, gradient))
        inputs = {id: flatten(value)[0] for id, value in received.items()}
        wanted = [leaf for tensors in inputs.values() for leaf in tensors if needs_gradient(leaf)]
        weights = [leaves[name] for name in program.parameters]
        found = iter(gradients_of(pairs, wanted + weights))
        for id, tensors in inputs.items():
            new = [next(found) if needs_gradient(leaf) else None for leaf in tensors]
            waiting[id] = [added(a, b) for a, b in zip(waiting.get(id, [None] * len(new)), new, strict=True)]
        for name in program.parameters:
            gradients[name] = added(gradients[name], next(found))
    return Result(outputs, gradients, buffers, generator)


def needs_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def gradients_of(pairs: list[tuple[Tensor, Tensor]], wanted: list[Tensor]) -> list[Tensor | None]:
    """Not `backward`: what it leaves in `.grad` is laid out anew, and then the kernels before it round otherwise."""
    if not pairs or not wanted:
        return [None] * len(wanted)
    outputs, gradients = zip(*pairs, strict=True)
    return list(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def detached(value: Any) -> Any:
    """What another process would receive: a copy, laid out alike, with a gradient of its own."""
    leaves, structure = flatten(value)
    return structure.unflatten([_copied(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def _copied(tensor: Tensor) -> Tensor:
    if 0 in tensor.stride():  # an expanded one arrives whole
        copied = tensor.detach().contiguous()
    else:
        copied = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).copy_(tensor.detach())
    return copied.requires_grad_(tensor.requires_grad)


def backward_from(outputs: Sequence[Tensor]) -> None:
    with_gradient = [output for output in outputs if output.requires_grad]
    torch.autograd.backward(with_gradient, [direction(output) for output in with_gradient])


def direction(output: Tensor) -> Tensor | None:
    if not output.requires_grad:
        return None
    return torch.cos(torch.arange(output.numel()) * 0.7).reshape(output.shape).to(output.dtype)


def assert_same(expected: Result, found: Result) -> None:
    for index, (a, b) in enumerate(zip(expected.outputs, found.outputs, strict=True)):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, f"output {index}"
    for name, gradient in expected.gradients.items():
        other = found.gradients[name]
        assert gradient is other is None or torch.equal(gradient, other), f"gradient of {name}"  # type: ignore[arg-type]
    for name, buffer in expected.buffers.items():
        assert torch.equal(buffer, found.buffers[name]), f"buffer {name}"
    assert torch.equal(expected.generator, found.generator), "state of the generator"


def random_stages(graph: ModelGraph, num_stages: int, seed: int) -> list[list[str]]:
    """A random legal cut: a random number for every operator, none less than those of what it reads.

    Random operators keep their order over the stages, as the generator's state travels.
    """
    draw = random.Random(seed)
    order = [one.id for one in graph.operators]
    inputs = {one.id for one in graph.operators if one.is_input}
    ends = sorted(draw.sample(range(1, len(order)), min(num_stages, len(order)) - 1))
    number = {id: sum(position >= end for end in ends) for position, id in enumerate(order)}
    for one in graph.operators:  # some go later than their turn, as far as their readers let them
        latest = min((number[to] for to in graph.targets[one.id]), default=number[one.id])
        if not one.is_random and (one.id in inputs or draw.random() < 0.3):
            number[one.id] = max(number[one.id], draw.randint(number[one.id], max(latest, number[one.id])))
    stages = [[id for id in order if number[id] == stage] for stage in range(num_stages)]
    return [stage for stage in stages if stage]
