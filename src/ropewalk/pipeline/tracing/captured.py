"""What the tracers hand on: one graph of calls, whichever way it was seen.

    torch.export ─┐
    torch.fx ─────┼──▶ Captured ──▶ groups of nodes (grouping) ──▶ ModelGraph
    Sequential ───┘

Parameters, buffers and the tensors of the model's inputs are placeholders; all else are
calls of functions, untraced modules among them (`BoundModule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from torch import fx

from ropewalk.pipeline.tracing.trees import Structure


class PlaceholderKind(Enum):
    """What a placeholder stands for."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True)
class PlaceholderSource:
    """A placeholder: which tensor of the model, or of its inputs, it is."""

    kind: PlaceholderKind
    #: The user's name of the parameter or buffer (the first, if it has several); the path of the input.
    name: str


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call stands in the model."""

    #: Path of the innermost module whose forward makes the call, with the number of that call if it is not the first.
    scope: str = ""
    #: The operator it belongs to if that is the call of a module: "encoder.layers.0.linear1:0".
    call: str | None = None
    #: The type of that module, or the name of the function.
    name: str = ""
    #: File, line and code, for messages.
    line: str = ""


@dataclass
class Captured:
    """A model as a graph of calls; its output node has the list of the leaves of what the model returns."""

    graph: fx.Graph
    sources: dict[fx.Node, PlaceholderSource]
    sites: dict[fx.Node, Site]
    #: What the model returns, without its leaves.
    output: Structure
    #: Constants and subgraphs, by the targets of the graph's `get_attr` nodes.
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    #: For the paths of inputs their sizes, None where any will do; an input that is not here may have any.
    sizes: dict[str, tuple[int | None, ...]] = field(default_factory=dict[str, tuple[int | None, ...]])
    #: Whether each call of a module stays an operator, however cheap it is (nn.Sequential).
    keeps_modules: bool = False

    def calls(self) -> Iterator[fx.Node]:
        """The nodes that do something, in program order."""
        return (node for node in self.graph.nodes if node.op in ("call_function", "call_method", "get_attr"))

    @property
    def output_leaves(self) -> list[Any]:
        """The leaves of what the model returns: nodes and constants."""
        return cast("list[Any]", list(self.graph.output_node().args[0]))  # pyright: ignore[reportArgumentType]


def run_node(node: fx.Node, values: Mapping[fx.Node, Any], attributes: Mapping[str, Any]) -> Any:
    """Carry out one call."""
    if node.op == "get_attr":
        return attributes[str(node.target)]
    args: Any = fx.map_arg(node.args, values.__getitem__)
    kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return cast("Callable[..., Any]", node.target)(*args, **kwargs)
