"""Runs a traced model operator by operator, each detached from its neighbours, and times each of them.

    forward    a ──▶ │ ──▶ b ──▶ │ ──▶ c        one pass over all operators in program order,
    backward   a ◀── │ ◀── b ◀── │ ◀── c        then back; │ detaches, as the edge of a stage does

So each operator finds the caches and the allocator as it does in a stage, and its gradient
is the real one, just computed by the operators that read its value. Each call of a program
or of autograd has a fixed overhead, which a stage pays once and not for each operator. So
after each operator an empty call is timed as well, to be subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.split_backward import deferred_weights
from ropewalk.pipeline.tracing.stage_program import StageProgram
from ropewalk.pipeline.tracing.trees import map_tensors, tensors_of
from ropewalk.pipeline.tracing.weight_queue import DeferredCall, WeightQueue


@dataclass(slots=True)
class Times:
    """The times of one operator, in seconds, one for each pass."""

    forward: list[float] = field(default_factory=list[float])
    backward: list[float] = field(default_factory=list[float])
    input_gradient: list[float] = field(default_factory=list[float])
    weight_gradient: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class OperatorRun:
    """One operator whose forward has run, and whose backward has not."""

    id: str
    leaves: list[tuple[str, int, Tensor]]
    """The tensors read that need a gradient: id of the source operator, index in its value, and the leaf used instead.
    """
    outputs: list[tuple[int, GradientEdge]]
    """The tensors of its value that have a gradient: index in the value, and the edge where the backward begins."""
    parameters: list[Tensor]
    queue: WeightQueue | None


class OperatorRuns:
    """Runs the operators of a graph on one mini-batch.

    Neither the model's `.grad` nor its buffers change.

    Args:
        graph: the traced model.
        inputs: the values of its input operators, by id.
        clock: returns the time in seconds.
        only: ids of the operators to run; `inputs` are then the values that these operators read. None: all operators.
        tensors: parameters and buffers by name; None: those of the model.
    """

    def __init__(
        self,
        graph: ModelGraph,
        inputs: Mapping[str, Any],
        clock: Callable[[], float] = time.perf_counter,
        *,
        only: Collection[str] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.programs: dict[str, StageProgram] = {
            one.id: graph.stage_program([one.id])
            for one in graph.operators
            if not one.is_input and (only is None or one.id in only)
        }
        held = {**graph.buffers, **graph.parameters} if tensors is None else tensors
        self.parameters = {
            name: held[name].detach().requires_grad_(own.requires_grad)
            for name, own in graph.parameters.items()
            if name in held
        }
        self.buffers = {name: held[name].clone() for name in graph.buffers if name in held}
        self.clock = _synchronised(clock, {tensor.device for tensor in tensors_of(list(inputs.values()))})
        self.times = {id: Times() for id in self.programs}
        self.empty = Times()
        """Times of empty calls."""
        self._last_reader = {source: id for id, program in self.programs.items() for source in program.inputs}
        self._first_gradients: dict[str, list[Tensor]] = {}
        self._empty_program = graph.stage_program([graph.model_inputs.ids[0]])
        self._empty_inputs = {id: inputs.get(id) for id in self._empty_program.inputs}
        self._nothing = Nothing.on(tensors_of(list(inputs.values()))[0].device)

    def forward(self, id: str, values: Mapping[str, Any], *, split: bool = False) -> tuple[OperatorRun, Any, float]:
        """Run one operator on the values of others.

        Args:
            id: id of the operator.
            values: the values of the operators that it reads, by id.
            split: whether its backward will be split.

        Returns:
            The state that its backward needs, its value (None if no operator reads it), and the seconds that it took.

        Raises:
            ProfileInvalid: the operator raised an exception, which is the cause of this one.
        """
        program = self.programs[id]
        given = {source: _cut_off(values[source]) for source in program.inputs}
        parameters = [self.parameters[name] for name in program.parameters]
        queue = WeightQueue() if split else None
        try:
            with nullcontext() if queue is None else deferred_weights(queue):
                results, took_s = self._timed(program, given, self.parameters, self.buffers)
        except Exception as error:
            raise ProfileInvalid(
                f"operator {id!r} ({self.graph.by_id[id].description}) cannot run on the example inputs: {error}; "
                f"it was given {', '.join(f'{source} {_shape(value)}' for source, value in given.items())}"
            ) from error
        value = results.get(id)
        return (
            OperatorRun(
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
            took_s,
        )

    def measure(self, *, split: bool, keep: bool) -> None:
        """Time one forward and one backward of all operators.

        Args:
            split: whether to split the backward; the time of the forward is then not kept, since the bookkeeping for
                the split slows it down.
            keep: whether to keep the times; False for a warm-up pass.
        """
        kept = (self.times, self.empty) if keep else ({id: Times() for id in self.programs}, Times())
        runs: list[OperatorRun] = []
        values = dict(self.inputs)
        gradients: dict[str, list[Tensor | None]] = {}
        for id in self.programs:
            run, value, took_s = self.forward(id, values, split=split)
            runs.append(run)
            if id in self._last_reader:
                values[id] = value
            else:  # what the model returns
                gradients[id] = [*self._gradients_of(id, value)]
            if not split:
                kept[0][id].forward.append(took_s)
                kept[1].forward.append(
                    self._timed(self._empty_program, self._empty_inputs, self.parameters, self.buffers)[1]
                )
            for source in self.programs[id].inputs:
                if self._last_reader[source] == id:
                    del values[source]
            run = value = None  # values are freed at the same time as in a stage
        self._backward(runs, gradients, *kept)

    def _backward(
        self,
        runs: list[OperatorRun],
        gradients: dict[str, list[Tensor | None]],
        times: Mapping[str, Times],
        empty: Times,
    ) -> None:
        of_parameters: list[Any] = []  # kept to the end, as in a stage
        queues: list[tuple[str, WeightQueue, list[Tensor]]] = []
        while runs:
            run = runs.pop()
            arrived = gradients.pop(run.id, [])
            begins = [(edge, arrived[i]) for i, edge in run.outputs if i < len(arrived) and arrived[i] is not None]
            if not begins or not (run.leaves or run.parameters):
                continue
            edges, first = [edge for edge, _ in begins], [gradient for _, gradient in begins]
            wanted = [leaf for *_, leaf in run.leaves] + run.parameters
            del arrived, begins
            found, took_s = self._timed(_grad_and_add, run, edges, wanted, first, gradients)
            of_parameters.append(found[len(run.leaves) :])
            if run.queue is None:
                times[run.id].backward.append(took_s)
                empty.backward.append(self._timed(self._nothing.backward)[1])
            else:
                times[run.id].input_gradient.append(took_s)
                empty.input_gradient.append(self._timed(self._nothing.input_gradient)[1])
                if len(run.queue):
                    queues.append((run.id, run.queue, run.parameters))
        for id, queue, parameters in queues:
            found, took_s = self._timed(queue.gradients, parameters)
            of_parameters.append(found)
            times[id].weight_gradient.append(took_s)
            empty.weight_gradient.append(self._timed(self._nothing.queue().gradients, [self._nothing.leaf])[1])

    def _timed(self, work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
        start = self.clock()
        result = work(*args)
        return result, self.clock() - start

    def _gradients_of(self, id: str, value: Any) -> list[Tensor]:
        """The gradients with which the model's backward begins: small noise, the same in each pass."""
        if id not in self._first_gradients:
            self._first_gradients[id] = [
                torch.randn_like(tensor) / tensor.numel() if tensor.requires_grad else tensor
                for tensor in tensors_of(value)
            ]
        return self._first_gradients[id]


@dataclass(frozen=True, slots=True)
class Nothing:
    """Empty backwards, to measure the overhead of a call."""

    leaf: Tensor
    edge: GradientEdge
    ones: Tensor

    @classmethod
    def on(cls, device: torch.device) -> Nothing:
        """Make the empty backwards for a device."""
        leaf = torch.ones(1, 1, device=device, requires_grad=True)
        return cls(leaf, get_gradient_edge(leaf), torch.ones(1, 1, device=device))

    def backward(self) -> None:
        """Run an empty whole backward."""
        torch.autograd.grad([self.edge], [self.leaf], [self.ones], allow_unused=True)

    def input_gradient(self) -> None:
        """Run the input-gradient half of an empty backward."""
        WeightQueue().input_gradients([self.edge], [self.leaf], [self.ones])

    def queue(self) -> WeightQueue:
        """Return a queue with the weight-gradient half of an empty backward."""
        queue = WeightQueue()
        with torch.no_grad():
            queue.add(DeferredCall(self.ones, self.ones, (self.leaf, None), lambda: (self.ones, None)))
        return queue


def _cut_off(tree: Any) -> Any:
    """The tree with its tensors replaced by leaves of a new autograd graph."""
    return map_tensors(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), tree)


def _grad_and_add(
    run: OperatorRun,
    edges: list[GradientEdge],
    wanted: list[Tensor],
    first: list[Tensor | None],
    gradients: dict[str, list[Tensor | None]],
) -> tuple[Tensor | None, ...]:
    """Run an operator's backward, and add the gradients of its inputs to those that came from other readers."""
    if run.queue is None:
        found = torch.autograd.grad(edges, wanted, first, allow_unused=True)
    else:
        found = run.queue.input_gradients(edges, wanted, first)
    for (source, position, _), gradient in zip(run.leaves, found, strict=False):
        _add(gradients, source, position, gradient)
    return found


def _add(gradients: dict[str, list[Tensor | None]], source: str, position: int, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    sums = gradients.setdefault(source, [])
    sums.extend([None] * (position + 1 - len(sums)))
    before = sums[position]
    sums[position] = gradient if before is None else before + gradient


def _shape(value: Any) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(value)) or repr(value)


def _synchronised(clock: Callable[[], float], devices: Iterable[torch.device]) -> Callable[[], float]:
    """A clock that synchronises with the devices before it reads the time."""
    accelerators = [device for device in devices if device.type == "cuda"]
    if not accelerators:
        return clock

    def now() -> float:
        for device in accelerators:
            torch.cuda.synchronize(device)
        return clock()

    return now
