"""`Colocate`: several nodes close together, as threads of one process or as processes of one host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from ropewalk.program.node import Node

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext

Closeness = Literal["threads", "processes"]


class Colocate(Node[Mapping[str, Any]]):
    """Places nodes close together that exchange many calls.

    As threads they share one process, which starts, fails and restarts as a whole. It also ends as a whole: if there
    are workers among the nodes (or services with `run`), the process ends when the last of these has completed, and
    nodes elsewhere that still call one of its services get a `ServiceLost` that says so. A service that must outlive
    the workers beside it belongs in a process of its own. As processes the nodes share a host, and each has its own
    life cycle.

    The keys are names of the program, so the nodes can be given to each other with `program.declare(name)`.

    Args:
        nodes: the nodes by name.
        as_: "threads" of one process, or "processes" of one host.

    Example:
        >>> from ropewalk.program.nodes.service import Service
        >>> from ropewalk.program.program import Program
        >>> program = Program("demo")
        >>> nodes = {"table": Service(dict), "copy": Service(dict, table=program.declare("table"))}
        >>> program.add(Colocate(nodes, as_="threads"), name="host")
        {'table': Handle('table'), 'copy': Handle('copy')}

    Raises:
        TypeError: a value is not a node.
        ValueError: `as_` is neither "threads" nor "processes", or there are no nodes.
    """

    kind: ClassVar[str] = "colocate"

    def __init__(self, nodes: Mapping[str, Node[Any]], *, as_: Closeness = "threads") -> None:
        if as_ not in get_args(Closeness):
            raise ValueError(f'as_ must be "threads" or "processes", not {as_!r}')
        if not isinstance(nodes, Mapping):
            raise TypeError(f"Colocate needs nodes by name, as in {{'replay': Service(Replay)}}, not {nodes!r}")
        if not nodes:
            raise ValueError("Colocate needs at least one node")
        for name, node in nodes.items():
            if not isinstance(node, Node):
                raise TypeError(f"Colocate needs nodes, such as Service(Replay), but {name!r} is {node!r}")
        self.nodes: dict[str, Node[Any]] = dict(nodes)
        self.as_: Closeness = as_

    @property
    def label(self) -> str:
        return "-".join(self.nodes)

    def arguments(self) -> dict[str, Any]:
        return {
            f"nodes[{name!r}].{path}": value
            for name, node in self.nodes.items()
            for path, value in node.arguments().items()
        }

    def parts(self) -> Mapping[str, Node[Any]]:
        return self.nodes

    @property
    def finite(self) -> bool:
        return any(node.finite for node in self.nodes.values())

    def problems(self) -> Iterable[str]:
        for name, node in self.nodes.items():
            if node.parts() or node.num_replicas is not None:
                yield f"{name!r} is a {node.kind} node, which cannot be colocated; add it to the program by itself"
            elif self.as_ == "threads" and node.refuses_threads():
                yield f'{name!r} cannot share a process: {node.refuses_threads()}; use as_="processes"'

    def run(self, context: NodeContext) -> None:
        """Not called: every part runs with a context of its own.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{context.name} is colocated nodes, each of which runs by itself")
