"""A traced model without its tensors: every stage process gets one, and rebuilds the model's graph from it.

    launcher                                              stage process
    ModelGraph ──▶ Blueprint.of ──▶ (pickled, no weights) ──▶ .graph() ──▶ ModelGraph, its model on meta
                                                                             │ stage_program(...)
                                                              TensorSource ──▶ its own parameters and buffers

Nothing is traced again: calls are sent as records, and modules that run untraced as shells whose parameters and buffers
are on meta. Constants of the graph are sent with it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.bound_module import BoundModule
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderSource
from ropewalk.pipeline.tracing.graph_records import (
    Record,
    attribute_on_device,
    decoded_attribute,
    encoded_attribute,
    graph_of,
    on_device,
    records_of,
)
from ropewalk.pipeline.tracing.model_graph import ModelGraph, TracedOperator
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.named_tensors import table_of
from ropewalk.pipeline.tracing.stage_program import BatchNormCall
from ropewalk.pipeline.tracing.trees import Structure


class TensorSpec(NamedTuple):
    """The shape, dtype and layout of a tensor, without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Return the spec of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device | str) -> Tensor:
        """Return an uninitialised tensor of this spec."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)

    @property
    def size_bytes(self) -> int:
        """The size of its elements in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class _Operator(NamedTuple):
    """A `TracedOperator` whose nodes are given by their positions in the graph."""

    id: str
    description: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    is_random: bool
    is_input: bool
    nodes: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The graph of a model as data that can be pickled; see the module for its use."""

    model: str
    """The name of the model's type."""
    is_training: bool
    parameters: Mapping[str, TensorSpec]
    """By the names that operators use for them."""
    buffers: Mapping[str, TensorSpec]
    inputs: ModelInputs
    output: str
    """Id of the operator whose value the model returns."""
    ties: Mapping[str, tuple[str, ...]]
    marks: tuple[str, ...]
    evaluation: Blueprint | None
    """The same model in evaluation mode; None: it was left out."""
    _structure: Structure
    _sizes: Mapping[str, tuple[int | None, ...]]
    _records: tuple[Record, ...]
    _sources: Mapping[int, PlaceholderSource]
    """The source that each placeholder stands for, by the placeholder's position."""
    _operators: tuple[_Operator, ...]
    _batch_norms: Mapping[str, tuple[BatchNormCall, ...]]
    _attributes: Mapping[str, Any]
    """Constants and subgraphs, by the targets of `get_attr` nodes."""

    @classmethod
    def of(cls, graph: ModelGraph, *, evaluates: bool = True) -> Blueprint:
        """Make the blueprint of a graph.

        Args:
            graph: not changed.
            evaluates: include the graph of evaluation mode, which may have to be traced for it.

        Returns:
            The blueprint, without weights.

        Raises:
            NotTraceable: a module that runs untraced cannot be copied.
        """
        # The memo of deepcopy: the replacements of the model's tensors, wherever shells and inputs hold them.
        on_meta: dict[int, Any] = {}
        for tensor in (*graph.parameters.values(), *graph.buffers.values()):
            on_meta[id(tensor)] = _on_meta(tensor)
        evaluation = graph.for_eval if evaluates else graph
        return replace(_taken(graph, on_meta), evaluation=_taken(evaluation, on_meta) if evaluates else None)

    def on(self, device: torch.device) -> Blueprint:
        """Return the blueprint with its constants on a device, and with operators that create tensors there.

        Every device that the model names is replaced by this one, because the model may have been traced elsewhere.
        """
        return replace(
            self,
            _records=on_device(self._records, device),
            _attributes={name: attribute_on_device(value, device) for name, value in self._attributes.items()},
            evaluation=None if self.evaluation is None else self.evaluation.on(device),
        )

    # --- building -----------------------------------------------------------------------------------------------------

    def graph(self) -> ModelGraph:
        """Return the graph, over a model that is a shell: parameters and buffers by the user's names, on meta.

        The graph is the same at each call.

        Raises:
            NotTraceable: an operation of the model is not known in this process.
        """
        return self._graph

    @cached_property
    def _graph(self) -> ModelGraph:
        graph, nodes = graph_of(self._records)
        captured = Captured(
            graph,
            {nodes[place]: source for place, source in self._sources.items()},
            {},
            self._structure,
            {name: decoded_attribute(value) for name, value in self._attributes.items()},
            dict(self._sizes),
        )
        return ModelGraph(
            self.shell(),
            captured,
            tuple(_built(one, nodes) for one in self._operators),
            self.inputs,
            output=self.output,
            marks=self.marks,
            ties=self.ties,
            batch_norms=self._batch_norms,
            trace_for_eval=self._graph_for_eval,
        )

    def _graph_for_eval(self) -> ModelGraph:
        if self.evaluation is None:
            raise NotTraceable(
                f"the graph of {self.model} in evaluation was left out of this blueprint; make it with evaluates=True"
            )
        return self.evaluation.graph()

    def shell(self) -> nn.Module:
        """Return a module with the model's parameters and buffers by name, on meta, that cannot be run."""
        shell = type(self.model, (_Shell,), {})()
        for specs, table in ((self.parameters, "_parameters"), (self.buffers, "_buffers")):
            for name, spec in specs.items():
                path, _, last = name.rpartition(".")
                tensor = spec.empty("meta")
                if table == "_parameters":
                    tensor = nn.Parameter(tensor, spec.requires_grad)
                table_of(_inner(shell, path), table)[last] = tensor
        return shell.train(self.is_training)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_graph"}


class _Shell(nn.Module):
    """A module without a forward."""

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raise: a shell cannot be run."""
        raise NotTraceable(f"this {type(self).__name__} has only the names of its parameters; run stage programs of it")


def _inner(module: nn.Module, path: str) -> nn.Module:
    for name in path.split(".") if path else ():
        children = cast("dict[str, nn.Module]", module.__dict__["_modules"])
        module = children.setdefault(name, _Shell())
    return module


def _taken(graph: ModelGraph, on_meta: dict[int, Any]) -> Blueprint:
    captured = graph.captured
    places = {node: place for place, node in enumerate(captured.graph.nodes)}
    return Blueprint(
        model=type(graph.model).__name__,
        is_training=graph.model.training,
        parameters={name: TensorSpec.of(tensor) for name, tensor in graph.parameters.items()},
        buffers={name: TensorSpec.of(tensor) for name, tensor in graph.buffers.items()},
        inputs=graph.model_inputs,
        output=graph.output,
        ties=dict(graph.ties),
        marks=graph.marks,
        evaluation=None,
        _structure=captured.output,
        _sizes=captured.sizes,
        _records=tuple(_without_tensors(one, on_meta) for one in records_of(captured.graph)),
        _sources={places[node]: source for node, source in captured.sources.items()},
        _operators=tuple(_record(one, places) for one in graph.operators),
        _batch_norms=dict(graph.batch_norms),
        _attributes={name: encoded_attribute(value) for name, value in captured.attributes.items()},
    )


def _without_tensors(record: Record, on_meta: dict[int, Any]) -> Record:
    if not isinstance(record.target, BoundModule):
        return record
    for tensor in record.target.bound_tensors():
        on_meta.setdefault(id(tensor), _on_meta(tensor))
    try:
        return record._replace(target=copy.deepcopy(record.target, on_meta))
    except Exception as error:
        raise NotTraceable(
            f"module {record.target.path!r}, which runs untraced, cannot be copied for the processes of its stage: "
            f"{type(error).__name__}: {error}; leave what cannot be copied out of it, or let it be traced"
        ) from error


def _on_meta(tensor: Tensor) -> Tensor:
    """Return the tensor on meta. It is kept alive while the blueprint is made, because deepcopy's memo uses ids."""
    spec = TensorSpec.of(tensor)
    empty = spec.empty("meta")
    return nn.Parameter(empty, spec.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _record(one: TracedOperator, places: Mapping[fx.Node, int]) -> _Operator:
    nodes, values = (tuple(places[node] for node in found) for found in (one.nodes, one.values))
    return _Operator(
        one.id, one.description, one.inputs, one.parameters, one.buffers, one.is_random, one.is_input, nodes, values
    )


def _built(one: _Operator, nodes: Sequence[fx.Node]) -> TracedOperator:
    found, values = (tuple(nodes[place] for place in places) for places in (one.nodes, one.values))
    return TracedOperator(
        one.id, one.description, one.inputs, one.parameters, one.buffers, one.is_random, one.is_input, found, values
    )
