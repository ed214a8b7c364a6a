"""`Node`: a vertex of the program, and `NodeSpec`: a node with its replicas, resources and restart rule.

A node holds the arguments of its constructor and does nothing until `run` is called in the process that was started
for it. A new kind of node is one file in `nodes/`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ropewalk.calls.markers import MethodFacts
from ropewalk.engines.resources import Resources
from ropewalk.errors import HandleNotConnected
from ropewalk.program.restart_rule import Restart
from ropewalk.program.signatures import misfit

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext

T_co = TypeVar("T_co", covariant=True)


class Node(abc.ABC, Generic[T_co]):
    """One thing that runs in a program; `T_co` is the type that its clients stand for."""

    kind: ClassVar[str]
    """Its name in messages and drawings, and in `nodes.NODES`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """A label such as "Learner", from which the node gets its name if the user gives none."""

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments by path ("args[0]", "kwargs['rate']"); they hold the handles, and are pickled."""

    @abc.abstractmethod
    def run(self, context: NodeContext) -> None:
        """Do all of its work, in the node's thread in its own process; return when the work is done or was stopped."""

    def methods(self) -> dict[str, MethodFacts] | None:
        """The methods that clients can call; None if the node cannot be called."""
        return None

    def parts(self) -> Mapping[str, Node[Any]]:
        """The nodes inside it, by name; a node with parts is not run itself."""
        return {}

    @property
    def num_replicas(self) -> int | None:
        """The number of replicas that it must have, as one gang; None if the user chooses, and each restarts alone."""
        return None

    @property
    def least_replicas(self) -> int | None:
        """The least number with which its gang may run, if `num_replicas` is an upper bound; None if it is exact."""
        return None

    @property
    def finite(self) -> bool:
        """Whether it ends by itself; a program is complete when all finite nodes have completed."""
        return False

    def problems(self) -> Iterable[str]:
        """Problems with its arguments, in sentences; handles and deferred values count as any value."""
        return ()

    def refuses_threads(self) -> str:
        """The reason why it cannot run as a thread beside other nodes; "" if it can."""
        return ""

    if not TYPE_CHECKING:  # so that a type checker reports that a node has no such attribute

        def __getattr__(self, name):
            if name.startswith("_"):  # pickle, copy, inspect and notebooks ask for such names
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise HandleNotConnected(
                f"`.{name}` was asked of a {self.kind} ({self.label}), which is only the description of a node. Add it "
                f"to the program, `handle = program.add(...)`, and give the handle to the node that calls it, as in "
                f"program.add(rw.Worker(f, handle)): there f gets a client, and can do `client.{name}(...)`",
                handle=self.label,
            )


class FunctionNode(Node[Any]):
    """A node that calls a function with its arguments, and ends when that returns."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def label(self) -> str:
        return label_of(self.function)

    @property
    def finite(self) -> bool:
        return True

    def arguments(self) -> dict[str, Any]:
        return call_arguments("function", self.function, self.args, self.kwargs)

    def problems(self) -> Iterable[str]:
        if reason := misfit(self.function, self.args, self.kwargs):
            yield reason


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node as it was added to a program."""

    name: str
    node: Node[Any]
    unit: str
    """Name of the unit, which runs as one process: shared by the nodes of a `Colocate`, else the node's name."""
    replicas: int = 1
    resources: Resources = field(default_factory=Resources)
    """What each replica requests."""
    restart: Restart = field(default_factory=lambda: Restart("never"))
    gang: str
    """Name of its gang, whose nodes restart together, with all replicas, if `restart.strategy` is "together"."""
    essential: bool = True
    """Whether the program waits for it to complete, and ends when it fails and is not restarted."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables for its process."""
    checkpoint_s: float | None = None
    """Seconds between two checkpoints of a service that has `state_dict`; None for the default."""
    preload: tuple[str, ...] = ()
    """Modules that its processes share from the start."""
    group: str = ""
    """Path of its group, such as "actors" or "train/actors"."""
    host: str = ""
    """Nodes with the same value run on one machine; "" for any machine."""

    def __str__(self) -> str:
        return f"{self.node.kind} {self.name!r}"


def call_arguments(what: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The function and arguments of a call by path, for `Node.arguments`."""
    positional = {f"args[{index}]": value for index, value in enumerate(args)}
    return {what: function} | positional | {f"kwargs[{key!r}]": value for key, value in kwargs.items()}


def label_of(function: Callable[..., Any]) -> str:
    """The name of a function or class; a partial function has the name of the original."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func  # type: ignore[attr-defined]
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else name
