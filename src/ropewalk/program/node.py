"""`Node`: a vertex of the program, and `NodeSpec`: a node with how often, where and under which rule it runs.

A node holds what was given to its constructor and does nothing until `run`
is called in the process that was started for it. A new kind of node is one
file in `nodes/`.
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

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext

T_co = TypeVar("T_co", covariant=True)


class Node(abc.ABC, Generic[T_co]):
    """One thing that runs in a program; `T_co` is what its clients stand for."""

    #: Its name in messages and drawings, and in `nodes.NODES`.
    kind: ClassVar[str]

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What it runs, such as "Learner"; names it if the user does not."""

    @abc.abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What it was given, by path ("cls", "args[0]", "kwargs['rate']"); it holds the handles, and is pickled."""

    @abc.abstractmethod
    def run(self, context: NodeContext) -> None:
        """Do all of its work, in the node's own thread in its own process; returns when it is done or was stopped."""

    def methods(self) -> dict[str, MethodFacts] | None:
        """What clients can call; None: it cannot be called."""
        return None

    def parts(self) -> Mapping[str, Node[Any]]:
        """The nodes inside it, by name; a node with parts is not run itself."""
        return {}

    @property
    def num_replicas(self) -> int | None:
        """How many replicas there must be, which form one gang; None: as many as the user says, each for itself."""
        return None

    @property
    def finite(self) -> bool:
        """Whether it ends by itself; a program is complete when all of these have."""
        return False

    def problems(self) -> Iterable[str]:
        """What is wrong with its arguments, in sentences; handles and deferred values count as any value."""
        return ()

    def refuses_threads(self) -> str:
        """Why it cannot run as a thread beside other nodes; "" if it can."""
        return ""

    if not TYPE_CHECKING:  # a type checker shall say that a node has no such attribute

        def __getattr__(self, name):
            if name.startswith("_"):  # pickle, copy, inspect and notebooks ask for such names
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise HandleNotConnected(
                f"`.{name}` was asked of a {self.kind} ({self.label}), which is only the description of a node. Add it "
                f"to the program, `handle = program.add(...)`, and give the handle to the node that calls it, as in "
                f"program.add(rw.Worker(f, handle)): there f gets a client, and can do `client.{name}(...)`",
                handle=self.label,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node as it was added to a program."""

    name: str
    node: Node[Any]
    unit: str
    """Name of what lives and dies together: one process holds all nodes of a unit (`Colocate`), else its own name."""
    replicas: int = 1
    resources: Resources = field(default_factory=Resources)
    """What each replica asks for."""
    restart: Restart = field(default_factory=lambda: Restart("never"))
    gang: str
    """Nodes of one gang restart together, with all replicas, if `restart.strategy` is "together"."""
    essential: bool = True
    """The program waits until it has completed; its failure, when nothing restarts it, ends the program."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that are set in its process."""
    checkpoint_s: float | None = None
    """Seconds between two checkpoints of a service that has `state_dict`; None: the default."""
    preload: tuple[str, ...] = ()
    """Modules that its processes share from the start."""
    group: str = ""
    """Path of the group that it was added in, such as "actors" or "train/actors"."""
    host: str = ""
    """Nodes with the same name here run on one machine; "": anywhere."""

    def __str__(self) -> str:
        return f"{self.node.kind} {self.name!r}"


def call_arguments(what: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The paths of a call's function and arguments, for `Node.arguments`."""
    positional = {f"args[{index}]": value for index, value in enumerate(args)}
    return {what: function} | positional | {f"kwargs[{key!r}]": value for key, value in kwargs.items()}


def label_of(function: Callable[..., Any]) -> str:
    """What people call a function or class; a partial one is called like the whole."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func  # type: ignore[attr-defined]
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else name
