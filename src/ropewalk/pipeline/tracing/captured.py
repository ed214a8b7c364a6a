"""The common result of the tracers: one graph of calls.

    torch.export ─┐
    torch.fx ─────┼──▶ Captured ──▶ groups of nodes (grouping) ──▶ ModelGraph
    Sequential ───┘

Parameters, buffers and the tensors of the model's inputs are placeholders; all other nodes are calls of functions,
among them untraced modules (`BoundModule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from torch import fx

from ropewalk.pipeline.tracing.trees import Structure


class PlaceholderKind(Enum):
    """The kind of tensor that a placeholder stands for."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True)
class PlaceholderSource:
    """The tensor of the model, or of its inputs, that a placeholder stands for."""

    kind: PlaceholderKind
    name: str
    """The name of the parameter or buffer in the user's model (the first, if it has several), or the path of the input.
    """


@dataclass(frozen=True, slots=True)
class Site:
    """The position of a call in the model."""

    scope: str = ""
    """Path of the innermost module whose forward makes the call, with the number of that forward if it is not the
    first."""
    call: str | None = None
    """The operator it belongs to if it is part of a leaf module's call: "encoder.layers.0.linear1:0"."""
    name: str = ""
    """The type of that module, or the name of the function."""
    line: str = ""
    """File, line and code, for messages."""


@dataclass
class Captured:
    """A model as a graph of calls; the argument of its output node is the list of leaves that the model returns."""

    graph: fx.Graph
    sources: dict[fx.Node, PlaceholderSource]
    sites: dict[fx.Node, Site]
    output: Structure
    """The structure of what the model returns."""
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Constants and subgraphs, by the targets of the graph's `get_attr` nodes."""
    sizes: dict[str, tuple[int | None, ...]] = field(default_factory=dict[str, tuple[int | None, ...]])
    """Sizes of inputs by path, None where any size will do; an input that is not here may have any sizes."""
    keeps_modules: bool = False
    """Whether each call of a module stays an operator of its own, however cheap it is (nn.Sequential)."""

    def calls(self) -> Iterator[fx.Node]:
        """Yield the nodes that call something, in program order."""
        return (node for node in self.graph.nodes if node.op in ("call_function", "call_method", "get_attr"))

    @property
    def output_leaves(self) -> list[Any]:
        """The leaves of what the model returns: nodes and constants."""
        return cast("list[Any]", list(self.graph.output_node().args[0]))  # pyright: ignore[reportArgumentType]


def run_node(node: fx.Node, values: Mapping[fx.Node, Any], attributes: Mapping[str, Any]) -> Any:
    """Execute one call."""
    if node.op == "get_attr":
        return attributes[str(node.target)]
    args: Any = fx.map_arg(node.args, values.__getitem__)
    kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return cast("Callable[..., Any]", node.target)(*args, **kwargs)
