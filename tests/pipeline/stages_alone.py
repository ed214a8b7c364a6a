"""Random legal cuts of a model, and what each stage takes when it runs alone: what a profile must have foretold."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.split_backward import WeightQueue, deferred_weights
from ropewalk.pipeline.tracing.trees import tensors_of

#: Seconds of this thread alone: other work on the machine does not count.
CLOCK = time.thread_time


def random_cut(profile: Profile, num_stages: int, seed: int) -> list[list[str]]:
    """Operators of stages: a random topological order, cut at random places."""
    choice = random.Random(seed)
    order = _random_order(profile, choice)
    places = sorted(choice.sample(range(1, len(order)), num_stages - 1))
    return [order[a:b] for a, b in zip([0, *places], [*places, len(order)], strict=True)]


def random_cut_by_time(profile: Profile, num_stages: int, seed: int) -> list[list[str]]:
    """Of a hundred random cuts the one whose least stage takes the most time: what is to be timed must take some."""
    cuts = (random_cut(profile, num_stages, 100 * seed + number) for number in range(100))
    return max(cuts, key=lambda stages: min(_compute_s(profile, stage) for stage in stages))


def _compute_s(profile: Profile, operators: Sequence[str]) -> float:
    return sum(profile.by_id[id].forward_s + profile.by_id[id].backward_s for id in operators)


def _random_order(profile: Profile, choice: random.Random) -> list[str]:
    waiting = {id: len(profile.sources[id]) for id in profile.by_id}
    ready = [id for id, num in waiting.items() if not num]
    order: list[str] = []
    while ready:
        id = ready.pop(choice.randrange(len(ready)))
        order.append(id)
        for target in profile.targets[id]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return order


@dataclass
class StageAlone:
    """One stage of a traced model, fed with the values that it gets from the others."""

    graph: ModelGraph
    operators: Sequence[str]
    #: Values of operators outside that it reads, and of the model's inputs.
    values: dict[str, Any]

    def __post_init__(self) -> None:
        self.program = self.graph.stage_program(list(self.operators))
        self.buffers = {name: tensor.clone() for name, tensor in self.graph.buffers.items()}
        self.parameters = [self.graph.parameters[name] for name in self.program.parameters]
        self.gradients: list[Tensor] = []

    def forward(self) -> tuple[list[Tensor], list[Tensor], float]:
        """Run it; gives the leaves whose gradients are wanted, the tensors it hands on, and the seconds it took."""
        given = {id: cut_off(value) for id, value in self.values.items()}
        start = CLOCK()
        outputs = self.program(given, self.graph.parameters, self.buffers)
        seconds = CLOCK() - start
        leaves = [tensor for value in given.values() for tensor in tensors_of(value)] + self.parameters
        handed = [tensor for value in outputs.values() for tensor in tensors_of(value)]
        if not self.gradients:
            self.gradients = [torch.randn_like(tensor) / tensor.numel() for tensor in handed if tensor.requires_grad]
        return [leaf for leaf in leaves if leaf.requires_grad], [one for one in handed if one.requires_grad], seconds

    def saved_bytes(self) -> int:
        """Bytes that it keeps for its backward, each storage once, without parameters and buffers."""
        kept: list[Tensor] = []
        with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
            alive = self.forward()
        free = {tensor.untyped_storage().data_ptr() for tensor in (*self.parameters, *self.buffers.values())}
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
        del alive
        return sum(size for address, size in storages.items() if address not in free)

    def seconds(self) -> tuple[float, float]:
        """Those of one forward and of one whole backward."""
        leaves, handed, forward_s = self.forward()
        start = CLOCK()
        kept = torch.autograd.grad(handed, leaves, self.gradients, allow_unused=True)
        seconds = CLOCK() - start
        del kept
        return forward_s, seconds

    def split_seconds(self) -> float:
        """Those of I and W together."""
        queue = WeightQueue()
        with deferred_weights(queue):
            leaves, handed, _ = self.forward()
        start = CLOCK()
        kept = queue.input_gradients(handed, leaves, self.gradients), queue.gradients(self.parameters)
        seconds = CLOCK() - start
        del kept
        return seconds


def cut_off(value: Any) -> Any:
    """A tensor that starts a graph of its own."""
    assert isinstance(value, Tensor)
    return value.detach().requires_grad_(value.requires_grad)


def alone(graph: ModelGraph, stages: Sequence[Sequence[str]], inputs: tuple[Tensor, ...]) -> list[StageAlone]:
    """The stages of a cut, each with its values; made by running them one after the other."""
    values: dict[str, Any] = dict(graph.bind(*inputs))
    found: list[StageAlone] = []
    for operators in stages:
        program = graph.stage_program(list(operators))
        stage = StageAlone(graph, operators, {id: values[id] for id in program.inputs})
        values.update(program(stage.values, graph.parameters, stage.buffers))
        found.append(stage)
    return found


def medians(stages: Sequence[StageAlone], repeats: int) -> list[tuple[float, float, float]]:
    """For each stage the seconds of forward, whole backward, and I with W; the stages take turns, of three runs each.

    The first run of a turn does not count: a stage finds the caches as it left them, not as another stage did.
    """
    times: list[list[tuple[float, float, float]]] = [[] for _ in stages]
    for _ in range(repeats):
        for stage, taken in zip(stages, times, strict=True):
            runs = [(*stage.seconds(), stage.split_seconds()) for _ in range(3)]
            taken.extend(runs[1:])
    return [tuple(statistics.median(column) for column in zip(*taken, strict=True)) for taken in times]
