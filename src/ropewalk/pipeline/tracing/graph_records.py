"""A graph of `torch.fx` as plain records that pickle, and back.

    node    linear = aten.linear.default(relu, weight)
    record  ("call_function", "linear", Operation("aten.linear.default"), (NodeRef(3), NodeRef(1)), {})

`fx` pickles a graph as code that it traces again, and cannot pickle operations of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from ropewalk.errors import NotTraceable


class NodeRef(NamedTuple):
    """A reference to another node in arguments: its index in the graph."""

    place: int


class Operation(NamedTuple):
    """An operation in `torch.ops`, by its name: "aten.add.Tensor", "higher_order.cond"."""

    name: str


_VIEW, _RESHAPE = Operation("aten.view.default"), Operation("aten.reshape.default")


class Record(NamedTuple):
    """One node."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A graph that is an argument of a call, such as a branch of `torch.cond`."""

    records: tuple[Record, ...]
    attributes: Mapping[str, Any]
    """Values by the targets of its own `get_attr` nodes."""


_Overload: Any = type(torch.ops.aten.add.Tensor)  # pyright: ignore[reportUnknownVariableType]
_HigherOrder: Any = type(torch.ops.higher_order.cond).__mro__[1]  # pyright: ignore


def records_of(graph: fx.Graph) -> tuple[Record, ...]:
    """Return the nodes of a graph, in order, as records."""
    places = {node: place for place, node in enumerate(graph.nodes)}

    def encoded(value: Any) -> Any:
        return NodeRef(places[value]) if isinstance(value, fx.Node) else value

    return tuple(
        Record(node.op, node.name, _encoded_target(node.target), _mapped(encoded, node.args), _kwargs(encoded, node))
        for node in graph.nodes
    )


def graph_of(records: Sequence[Record]) -> tuple[fx.Graph, list[fx.Node]]:
    """Return a graph made from records, and its nodes in order.

    Raises:
        NotTraceable: an operation is not known in this process.
    """
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def decoded(value: Any) -> Any:
        return nodes[value.place] if isinstance(value, NodeRef) else value

    for op, name, target, args, kwargs in records:
        target = _operation(target.name) if isinstance(target, Operation) else target
        if op == "output":
            nodes.append(graph.output(_mapped(decoded, args[0])))
        else:
            kwargs = {key: _mapped(decoded, value) for key, value in kwargs.items()}
            nodes.append(graph.create_node(op, target, _mapped(decoded, args), kwargs, name))
    return graph, nodes


def on_device(records: Sequence[Record], device: torch.device) -> tuple[Record, ...]:
    """Return the records with every device among their arguments replaced by this one.

    Views become reshapes: which strides a kernel gives its result (as in attention) depends on the device.
    """

    def moved(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    return tuple(
        one._replace(
            target=_RESHAPE if one.target == _VIEW else one.target,
            args=_mapped(moved, one.args),
            kwargs={key: _mapped(moved, value) for key, value in one.kwargs.items()},
        )
        for one in records
    )


def attribute_on_device(value: Any, device: torch.device) -> Any:
    """Return an encoded attribute with its constants and devices moved to this device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Subgraph):
        attributes = {name: attribute_on_device(one, device) for name, one in value.attributes.items()}
        return Subgraph(on_device(value.records, device), attributes)
    return value


def encoded_attribute(value: Any) -> Any:
    """Encode the value of a `get_attr` node: graphs become records, all else stays as it is."""
    if not isinstance(value, fx.GraphModule):
        return value
    graph: fx.Graph = value.graph
    names = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return Subgraph(records_of(graph), {name: encoded_attribute(_attribute(value, name)) for name in sorted(names)})


def decoded_attribute(value: Any) -> Any:
    """Decode the result of `encoded_attribute`."""
    if not isinstance(value, Subgraph):
        return value
    attributes = {name: decoded_attribute(one) for name, one in value.attributes.items()}
    return fx.GraphModule(attributes, graph_of(value.records)[0])


def _attribute(module: fx.GraphModule, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _kwargs(encoded: Callable[[Any], Any], node: fx.Node) -> dict[str, Any]:
    return {key: _mapped(encoded, value) for key, value in node.kwargs.items()}


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to every leaf of a tree of arguments; lists and dictionaries of `fx` become plain ones."""
    if isinstance(value, NodeRef):
        return change(value)
    if isinstance(value, tuple):
        row = [_mapped(change, one) for one in cast("tuple[Any, ...]", value)]
        kind: Any = type(cast(object, value))
        return kind(*row) if hasattr(kind, "_fields") else tuple(row)
    if isinstance(value, list):
        return [_mapped(change, one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _mapped(change, one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, slice):
        part = cast("slice[Any, Any, Any]", value)
        return slice(_mapped(change, part.start), _mapped(change, part.stop), _mapped(change, part.step))
    return change(value)


def _encoded_target(target: Any) -> Any:
    if isinstance(target, _Overload):
        return Operation(str(target))
    if isinstance(target, _HigherOrder):
        return Operation(f"higher_order.{target.__name__}")
    return target


def _operation(name: str) -> Any:
    found: Any = torch.ops
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise NotTraceable(
            f"the model calls the operation torch.ops.{name}, which this process does not know; define it in a module "
            f"that can be imported here, and let the module of the model import that one"
        ) from error
    return found
