"""Measuring a model that nobody has in memory: each operator alone, on tensors made up for it and freed again.

    shapes     all operators run on fake tensors: values, saved tensors, which have a gradient
    bytes      counted there (`operator_memory`)
    seconds    operator by operator: inputs, parameters and buffers of those shapes are made,
               it runs forward and backward, they go; operators that are alike are measured once

Memory is what the largest operator takes. An operator finds its inputs in no cache and its
gradient made up, so that times are a little less true than those of a model at hand.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx

from ropewalk.pipeline.operator_memory import Bytes, measure_bytes
from ropewalk.pipeline.operator_runs import OperatorRuns, Times, tensors_of
from ropewalk.pipeline.timing import take_times
from ropewalk.pipeline.tracing.bound_module import BoundModule
from ropewalk.pipeline.tracing.fake_tensors import Fakes
from ropewalk.pipeline.tracing.model_graph import ModelGraph, TracedOperator
from ropewalk.pipeline.tracing.named_tensors import modules_of
from ropewalk.pipeline.tracing.trees import Structure, flatten

_OVERLOAD: Any = type(cast(Any, torch.ops.aten.add.Tensor))  # pyright: ignore[reportUnknownVariableType]


class OperatorInputs(NamedTuple):
    """What an operator took, and what calls with nothing in them took beside it."""

    times: Times
    empty: Times


class _Spec(NamedTuple):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, leaf: Any) -> Any:
        """What a tensor is like; other leaves stay themselves."""
        if not isinstance(leaf, Tensor):
            return leaf
        return cls(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.requires_grad)

    def made(self) -> Tensor:
        """One with numbers: zeros where only whole numbers go, which index anything."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        tensor = tensor.uniform_(-0.1, 0.1) if self.dtype.is_floating_point else tensor.zero_()
        return tensor.requires_grad_(self.requires_grad)


class _Value(NamedTuple):
    """A value of an operator without its numbers."""

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
        graph: of a model whose parameters are on meta.
        inputs: the values of its input operators.
        repeats: how often each time is taken, at least.
        clock: what seconds are.
        report: is told in words how far it is.

    Returns:
        By operator its times, and its bytes.
    """
    values, sizes, bytes_of = _shapes(graph, inputs)
    found: dict[Any, OperatorInputs] = {}
    taken: dict[str, OperatorInputs] = {}
    operators = [one for one in graph.operators if not one.is_input]
    for position, one in enumerate(operators):
        likeness = _likeness(graph, one, values, sizes)
        if likeness not in found:
            gc.collect()  # what backwards leave in circles; while times are taken it does not run by itself
            report(f"measuring {one.id}, {position + 1} of {len(operators)}")
            found[likeness] = _measured(graph, one, values, sizes, repeats, clock)
        taken[one.id] = found[likeness]
    return taken, bytes_of


def _shapes(
    graph: ModelGraph, inputs: Mapping[str, Any]
) -> tuple[dict[str, _Value], dict[str, _Spec], dict[str, Bytes]]:
    """What all values and the model's tensors are like, and what operators keep."""
    fakes = Fakes()
    own = {**graph.buffers, **graph.parameters}
    with fakes.mode:
        tensors = {name: fakes.of(tensor) for name, tensor in own.items()}
        given = {id: _mapped(fakes.of, value) for id, value in inputs.items()}
        runs = OperatorRuns(graph, given, tensors=tensors)
        bytes_of = measure_bytes(runs)
        values = {id: _Value.of(value) for id, value in given.items()}
        results: dict[str, Any] = dict(given)
        for id in runs.programs:
            results[id] = runs.forward(id, results)[1]
            values[id] = _Value.of(results[id])
    return values, {name: _Spec.of(tensor) for name, tensor in own.items()}, bytes_of


def _mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return structure.unflatten([change(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def _likeness(graph: ModelGraph, one: TracedOperator, values: Mapping[str, _Value], own: Mapping[str, _Spec]) -> Any:
    """The same for operators that do the same with tensors of the same shapes."""
    return (
        _calls(graph, one),
        tuple(values[id].leaves if _are_shapes(values[id]) else id for id in one.inputs),
        tuple(own[name] for name in (*one.parameters, *one.buffers)),
    )


def _calls(graph: ModelGraph, one: TracedOperator) -> Any:
    """What an operator calls, in words; its id if they do not say all, as for untraced modules of the user."""
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
    """The name of what is called, if that says what it does."""
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
        if isinstance(target := node.target, BoundModule):  # it would hold what was made for it
            target.bind([graph.parameters[n] for n in target.parameters], [graph.buffers[n] for n in target.buffers])
    return OperatorInputs(runs.times[one.id], runs.empty)
