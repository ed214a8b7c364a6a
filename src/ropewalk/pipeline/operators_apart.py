"""Measures a model that need not fit into memory: each operator alone, on synthetic tensors that are freed afterwards.

    shapes     all operators run on fake tensors: values, saved tensors, which have a gradient
    bytes      counted in the same run (`operator_memory`)
    seconds    operator by operator: inputs, parameters and buffers of these shapes are made, it
               runs forward and backward, they are freed; equal operators are measured once

This takes as much memory as the largest operator needs. An operator's inputs are in no cache
and its gradient is synthetic, so times are slightly less accurate than those of a real model.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx

from ropewalk.pipeline.operator_memory import Bytes, measure_bytes
from ropewalk.pipeline.operator_runs import OperatorRuns, Times
from ropewalk.pipeline.timing import take_times
from ropewalk.pipeline.tracing.bound_module import BoundModule
from ropewalk.pipeline.tracing.fake_tensors import Fakes
from ropewalk.pipeline.tracing.model_graph import ModelGraph, TracedOperator
from ropewalk.pipeline.tracing.named_tensors import modules_of
from ropewalk.pipeline.tracing.trees import Structure, flatten, map_tensors, tensors_of

_OVERLOAD: Any = type(cast(Any, torch.ops.aten.add.Tensor))  # pyright: ignore[reportUnknownVariableType]


class OperatorInputs(NamedTuple):
    """The times of an operator, and those of empty calls measured with it."""

    times: Times
    empty: Times


class _Spec(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, leaf: Any) -> Any:
        """Return the spec of a tensor; other leaves are returned unchanged."""
        if not isinstance(leaf, Tensor):
            return leaf
        return cls(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.requires_grad)

    def made(self) -> Tensor:
        """Make a tensor of this spec; integers are all 0, which is a valid index into anything."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        tensor = tensor.uniform_(-0.1, 0.1) if self.dtype.is_floating_point else tensor.zero_()
        return tensor.requires_grad_(self.requires_grad)


class _Value(NamedTuple):
    """The value of an operator, with specs for its tensors."""

    leaves: tuple[Any, ...]
    structure: Structure

    @classmethod
    def of(cls, value: Any) -> _Value:
        leaves, structure = flatten(value)
        return cls(tuple(map(_Spec.of, leaves)), structure)

    def made(self) -> Any:
        return self.structure.unflatten([one.made() if isinstance(one, _Spec) else one for one in self.leaves])


def measure_apart(
    graph: ModelGraph,
    inputs: Mapping[str, Any],
    *,
    repeats: int,
    clock: Callable[[], float],
    report: Callable[[str], None],
) -> tuple[dict[str, OperatorInputs], dict[str, Bytes]]:
    """Measure every operator.

    Args:
        graph: the graph of a model whose parameters are on the meta device.
        inputs: the values of its input operators, by id.
        repeats: fewest measurements of each operator.
        clock: returns the time in seconds.
        report: called with a line of text about the progress.

    Returns:
        The times and the sizes of each operator, by its id.
    """
    values, sizes, bytes_of = _shapes(graph, inputs)
    found: dict[Any, OperatorInputs] = {}
    taken: dict[str, OperatorInputs] = {}
    operators = [one for one in graph.operators if not one.is_input]
    for position, one in enumerate(operators):
        likeness = _likeness(graph, one, values, sizes)
        if likeness not in found:
            gc.collect()  # backwards leave reference cycles, and automatic collection is off during measurements
            report(f"measuring {one.id}, {position + 1} of {len(operators)}")
            found[likeness] = _measured(graph, one, values, sizes, repeats, clock)
        taken[one.id] = found[likeness]
    return taken, bytes_of


def _shapes(
    graph: ModelGraph, inputs: Mapping[str, Any]
) -> tuple[dict[str, _Value], dict[str, _Spec], dict[str, Bytes]]:
    """The specs of all values and of the model's tensors, and the bytes that operators keep."""
    fakes = Fakes()
    own = {**graph.buffers, **graph.parameters}
    with fakes.mode:
        tensors = {name: fakes.of(tensor) for name, tensor in own.items()}
        given = {id: map_tensors(fakes.of, value) for id, value in inputs.items()}
        runs = OperatorRuns(graph, given, tensors=tensors)
        bytes_of = measure_bytes(runs)
        values = {id: _Value.of(value) for id, value in given.items()}
        results: dict[str, Any] = dict(given)
        for id in runs.programs:
            results[id] = runs.forward(id, results)[1]
            values[id] = _Value.of(results[id])
    return values, {name: _Spec.of(tensor) for name, tensor in own.items()}, bytes_of


def _likeness(graph: ModelGraph, one: TracedOperator, values: Mapping[str, _Value], own: Mapping[str, _Spec]) -> Any:
    """A key that is equal for operators that compute the same on tensors of the same shapes."""
    return (
        _calls(graph, one),
        tuple(values[id].leaves if _are_shapes(values[id]) else id for id in one.inputs),
        tuple(own[name] for name in (*one.parameters, *one.buffers)),
    )


def _calls(graph: ModelGraph, one: TracedOperator) -> Any:
    """A description of an operator's calls; its id if that is incomplete, as for untraced modules of the user."""
    of_others = {value: index for id in one.inputs for index, value in enumerate(graph.by_id[id].values)}
    names: dict[fx.Node, str] = {}

    def named(node: fx.Node) -> Any:
        return names.setdefault(node, f"%{len(names)} value {of_others.get(node)}")

    words: list[str] = []
    for node in one.nodes:
        called = _called(node.target)
        if called is None:
            return one.id
        words.append(f"{named(node)} = {called}{fx.map_arg(node.args, named)}{fx.map_arg(node.kwargs, named)}")
    return tuple(words)


def _called(target: Any) -> str | None:
    """The name of the call's target, if the name determines what it computes."""
    if isinstance(target, BoundModule):
        modules = modules_of(target.shell).values()
        if all(type(module).__module__.startswith("torch.nn.") for module in modules):
            return f"{target.shell} {[module.training for module in modules]}"
        return None
    return str(target) if isinstance(target, _OVERLOAD) or target is operator.getitem else None


def _are_shapes(value: _Value) -> bool:
    return all(isinstance(leaf, _Spec) for leaf in value.leaves)


def _measured(
    graph: ModelGraph,
    one: TracedOperator,
    values: Mapping[str, _Value],
    sizes: Mapping[str, _Spec],
    repeats: int,
    clock: Callable[[], float],
) -> OperatorInputs:
    made = {id: values[id].made() for id in one.inputs}
    if not tensors_of(list(made.values())):
        return OperatorInputs(Times(), Times())
    tensors = {name: sizes[name].made() for name in (*one.parameters, *one.buffers)}
    runs = OperatorRuns(graph, made, clock, only=[one.id], tensors=tensors)
    take_times(runs, repeats)
    for node in one.nodes:
        if isinstance(target := node.target, BoundModule):  # it would keep the synthetic tensors alive
            target.bind([graph.parameters[n] for n in target.parameters], [graph.buffers[n] for n in target.buffers])
    return OperatorInputs(runs.times[one.id], runs.empty)
