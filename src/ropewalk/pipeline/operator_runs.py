"""Running a traced model operator by operator, each cut off from its neighbours, and taking the time of each.

    forward    a ──▶ │ ──▶ b ──▶ │ ──▶ c        one pass over all operators in program order,
    backward   a ◀── │ ◀── b ◀── │ ◀── c        then back; │ detaches, as the edge of a stage does

So each operator meets the caches and the allocator as it does in a stage, and its
gradient is the real one, fresh from those who read its value. What a call of a program
and of autograd costs once, however much there is in it, is measured by itself and taken
off: a stage pays it once, not for each operator.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.split_backward import WeightQueue, deferred_weights
from ropewalk.pipeline.tracing.stage_program import StageProgram
from ropewalk.pipeline.tracing.trees import flatten

#: Passes whose median is what a call costs by itself; one takes microseconds.
_FIXED_REPEATS = 200


@dataclass(slots=True)
class Times:
    """What one operator took, in seconds, pass by pass."""

    forward: list[float] = field(default_factory=list[float])
    backward: list[float] = field(default_factory=list[float])
    input_gradient: list[float] = field(default_factory=list[float])
    weight_gradient: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class Run:
    """One operator whose forward has run, and whose backward has not."""

    id: str
    #: What it read that needs a gradient: of which operator, which tensor of its value, and the leaf in its place.
    leaves: list[tuple[str, int, Tensor]]
    #: The tensors of its value that have a gradient: which, and where its backward begins.
    outputs: list[tuple[int, GradientEdge]]
    parameters: list[Tensor]
    queue: WeightQueue | None


class OperatorRuns:
    """The operators of a graph on one mini-batch.

    Neither the model's `.grad` nor its buffers change.

    Args:
        graph: the model.
        inputs: the values of its input operators.
    """

    def __init__(self, graph: ModelGraph, inputs: Mapping[str, Any]) -> None:
        self.graph = graph
        self.inputs = inputs
        self.programs: dict[str, StageProgram] = {
            one.id: graph.stage_program([one.id]) for one in graph.operators if not one.is_input
        }
        self.parameters = {
            name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in graph.parameters.items()
        }
        self.buffers = {name: tensor.clone() for name, tensor in graph.buffers.items()}
        self.clock = _clock({tensor.device for tensor in tensors_of(list(inputs.values()))})
        self.times = {id: Times() for id in self.programs}
        self._last_reader = {source: id for id, program in self.programs.items() for source in program.inputs}
        self._first_gradients: dict[str, list[Tensor]] = {}
        self._fixed = Fixed()

    def forward(self, id: str, values: Mapping[str, Any], *, split: bool = False) -> tuple[Run, Any, float]:
        """Run one operator on the values of others.

        Returns:
            What its backward needs, its value (None if nobody reads it), and the seconds it took.

        Raises:
            ProfileInvalid: it raised; its exception is the cause.
        """
        program = self.programs[id]
        given = {source: _cut_off(values[source]) for source in program.inputs}
        parameters = [self.parameters[name] for name in program.parameters]
        queue = WeightQueue() if split else None
        try:
            with nullcontext() if queue is None else deferred_weights(queue):
                start = self.clock()
                results = program(given, self.parameters, self.buffers)
                seconds = self.clock() - start
        except Exception as error:
            raise ProfileInvalid(
                f"operator {id!r} ({self.graph.by_id[id].description}) cannot run on the example inputs: {error}; "
                f"it was given {', '.join(f'{source} {_shape(value)}' for source, value in given.items())}"
            ) from error
        value = results.get(id)
        return (
            Run(
                id,
                [
                    (source, position, tensor)
                    for source, tree in given.items()
                    for position, tensor in enumerate(tensors_of(tree))
                    if tensor.requires_grad
                ],
                [
                    (position, get_gradient_edge(tensor))
                    for position, tensor in enumerate(tensors_of(value))
                    if tensor.requires_grad
                ],
                [parameter for parameter in parameters if parameter.requires_grad],
                queue,
            ),
            value,
            seconds,
        )

    def measure(self, *, split: bool, keep: bool) -> None:
        """Take the times of one forward and one backward of all operators.

        Args:
            split: the backward is split; then the time of the forward, which its bookkeeping slows down, is not kept.
            keep: whether the times count, or this is to warm up.
        """
        runs: list[Run] = []
        values = dict(self.inputs)
        last: dict[str, list[Tensor | None]] = {}
        for id in self.programs:
            run, value, seconds = self.forward(id, values, split=split)
            runs.append(run)
            if id in self._last_reader:
                values[id] = value
            else:  # what the model returns
                last[id] = [*self._gradients_of(id, value)]
            if keep and not split:
                self.times[id].forward.append(max(0.0, seconds - self._fixed.forward_s))
            for source in self.programs[id].inputs:
                if self._last_reader[source] == id:
                    del values[source]
            run = value = None  # a value lives as long as in a stage
        self._backward(runs, last, keep)

    def _backward(self, runs: list[Run], gradients: dict[str, list[Tensor | None]], keep: bool) -> None:
        of_parameters: list[Any] = []  # they live to the end, as in a stage
        queues: list[Run] = []
        while runs:
            run = runs.pop()
            arrived = gradients.pop(run.id, [])
            begins = [(edge, arrived[i]) for i, edge in run.outputs if i < len(arrived) and arrived[i] is not None]
            if not begins or not (run.leaves or run.parameters):
                self._keep_backward(run, 0.0, keep)
                continue
            edges, first = [edge for edge, _ in begins], [gradient for _, gradient in begins]
            wanted = [leaf for *_, leaf in run.leaves] + run.parameters
            del arrived, begins
            start = self.clock()
            if run.queue is None:
                found = torch.autograd.grad(edges, wanted, first, allow_unused=True)
            else:
                found = run.queue.input_gradients(edges, wanted, first)
            for (source, position, _), gradient in zip(run.leaves, found, strict=False):
                _add(gradients, source, position, gradient)
            seconds = self.clock() - start
            of_parameters.append(found[len(run.leaves) :])
            self._keep_backward(run, seconds - self._fixed.backward_s, keep)
            if run.queue is not None:
                queues.append(Run(run.id, [], [], run.parameters, run.queue))
        for run in queues:
            assert run.queue is not None
            seconds = 0.0
            if len(run.queue):
                start = self.clock()
                of_parameters.append(run.queue.gradients(run.parameters))
                seconds = self.clock() - start - self._fixed.weight_gradient_s
            if keep:
                self.times[run.id].weight_gradient.append(max(0.0, seconds))

    def _keep_backward(self, run: Run, seconds: float, keep: bool) -> None:
        if keep:
            times = self.times[run.id]
            (times.backward if run.queue is None else times.input_gradient).append(max(0.0, seconds))

    def _gradients_of(self, id: str, value: Any) -> list[Tensor]:
        """The gradients with which the backward of the model begins: small noise, the same in each pass."""
        if id not in self._first_gradients:
            self._first_gradients[id] = [
                torch.randn_like(tensor) / tensor.numel() if tensor.requires_grad else tensor
                for tensor in tensors_of(value)
            ]
        return self._first_gradients[id]

    def measure_fixed(self) -> None:
        """Measure what calls cost by themselves; from then on it is taken off."""
        self._fixed = Fixed()
        some_input = next(iter(self.inputs))
        program = self.graph.stage_program([some_input])
        self._fixed = Fixed(
            self._median(lambda: program(self.inputs, self.parameters, self.buffers)),
            *self._fixed_backward(),
        )

    def _fixed_backward(self) -> tuple[float, float]:
        device = next(iter(tensors_of(list(self.inputs.values())))).device
        leaf = torch.ones(1, 1, device=device, requires_grad=True)
        edge, ones = get_gradient_edge(leaf), torch.ones(1, 1, device=device)

        def weight_gradients(num_calls: int) -> float:
            queues: list[WeightQueue] = []
            for _ in range(_FIXED_REPEATS):
                queues.append(queue := WeightQueue())
                with deferred_weights(queue):
                    value = sum(torch.nn.functional.linear(ones, leaf) for _ in range(num_calls))
                queue.input_gradients([value], [leaf], [ones])  # pyright: ignore[reportArgumentType]
            return self._median(lambda: queues.pop().gradients([leaf]))

        backward_s = self._median(lambda: torch.autograd.grad([edge], [leaf], [ones]))
        # Of one call and of two: the difference is what stays of one call in a stage.
        return backward_s, max(0.0, 2 * weight_gradients(1) - weight_gradients(2))

    def _median(self, work: Callable[[], Any]) -> float:
        seconds: list[float] = []
        for _ in range(_FIXED_REPEATS):
            start = self.clock()
            work()
            seconds.append(self.clock() - start)
        return statistics.median(seconds)


@dataclass(frozen=True, slots=True)
class Fixed:
    """What calls cost by themselves, in seconds."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    weight_gradient_s: float = 0.0


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a tree, from left to right."""
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def _cut_off(tree: Any) -> Any:
    """The tree with leaves of a new graph in the place of its tensors."""
    leaves, structure = flatten(tree)
    return structure.unflatten(
        [leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    )


def _add(gradients: dict[str, list[Tensor | None]], source: str, position: int, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    sums = gradients.setdefault(source, [])
    sums.extend([None] * (position + 1 - len(sums)))
    before = sums[position]
    sums[position] = gradient if before is None else before + gradient


def _shape(value: Any) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(value)) or repr(value)


def _clock(devices: Iterable[torch.device]) -> Callable[[], float]:
    """Seconds, once the devices have done what they were told."""
    accelerators = [device for device in devices if device.type == "cuda"]
    if not accelerators:
        return time.perf_counter

    def now() -> float:
        for device in accelerators:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
