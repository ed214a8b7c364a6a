"""`Program`: a distributed program as a graph, built before anything runs.

    program = Program("impala")
    replay  = program.add(Service(Replay, capacity=100_000))       # a handle
    learner = program.add(Service(Learner, replay))                # learner ──▶ replay
    with program.group("actors", restart="on_failure"):
        program.add(Worker(act, learner, replay), replicas=64)     # actors ──▶ learner, replay

Adding nodes only records them. A program can be launched more than once.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, overload

from ropewalk import settings
from ropewalk.argument_kinds import check_kind
from ropewalk.control.target import ControlTarget
from ropewalk.engines.resources import Resources, check_resources
from ropewalk.errors import ProgramInvalid
from ropewalk.html_table import html_text
from ropewalk.processes.fleet import default_resources
from ropewalk.processes.session import Session
from ropewalk.program import drawing, picture
from ropewalk.program.drawing import DrawnEdge
from ropewalk.program.forgotten import Unlaunched
from ropewalk.program.handle import Handle, Vertex
from ropewalk.program.launch import launch
from ropewalk.program.node import Node, NodeSpec
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.preloading import found_preload
from ropewalk.program.restart_rule import Restart, restart_rule
from ropewalk.program.running import RunningProgram
from ropewalk.program.validation import Mode, problems_of, this_machine
from ropewalk.quantities import counted
from ropewalk.tracking.observed_run import Track

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", re.ASCII)
_FORMATS: dict[str, Callable[[drawing.DrawnGraph], str]] = {
    "dot": drawing.dot,
    "json": drawing.json,
    "svg": picture.svg,
}


@dataclass(frozen=True, slots=True)
class _Group:
    """Defaults for the members of a group."""

    path: str = ""
    resources: Resources | None = None
    restart: Restart | None = None
    essential: bool | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    gang: str = ""
    """Path of the outermost enclosing group whose members restart together."""


class Program:
    """A graph of nodes. Passing a node's handle to another node makes an edge.

    Example:
        >>> import ropewalk as rw
        >>> def work(counter):
        ...     print(counter.append(5))
        >>> program = rw.Program("counting")
        >>> counter = program.add(rw.Service(list), name="counter")
        >>> worker = program.add(rw.Worker(work, counter))
        >>> program.launch("threads").wait()
        None
        True

    Args:
        name: shown in outputs, status and file names.

    Raises:
        TypeError: the name is not a string.
        ValueError: the name contains characters that are not allowed.
    """

    def __init__(self, name: str) -> None:
        self.name: str = _checked_name("a program", name)
        self._specs: list[NodeSpec] = []
        self._vertices: dict[str, Vertex] = {}
        self._group = _Group()
        self.mistakes: list[tuple[str, str]] = []
        """Problems found while nodes were added, each with its node; `validate` reports them."""
        self._unlaunched = Unlaunched(self, self.name)

    @overload
    def add(  # pyright: ignore[reportOverlappingOverload]  # a `Colocate` is a node with several handles
        self,
        node: Colocate,
        *,
        name: str | None = None,
        replicas: int = 1,
        resources: Resources | None = None,
        restart: str | Restart | None = None,
        essential: bool | None = None,
        environment: Mapping[str, str] | None = None,
        checkpoint_s: float | None = None,
        preload: Sequence[str] | None = None,
    ) -> Mapping[str, Handle[Any]]: ...
    @overload
    def add(
        self,
        node: Node[T],
        *,
        name: str | None = None,
        replicas: int = 1,
        resources: Resources | None = None,
        restart: str | Restart | None = None,
        essential: bool | None = None,
        environment: Mapping[str, str] | None = None,
        checkpoint_s: float | None = None,
        preload: Sequence[str] | None = None,
    ) -> Handle[T]: ...
    def add(
        self,
        node: Node[Any],
        *,
        name: str | None = None,
        replicas: int = 1,
        resources: Resources | None = None,
        restart: str | Restart | None = None,
        essential: bool | None = None,
        environment: Mapping[str, str] | None = None,
        checkpoint_s: float | None = None,
        preload: Sequence[str] | None = None,
    ) -> Handle[Any] | Mapping[str, Handle[Any]]:
        """Add a node and return a handle, which stands for it in the arguments of other nodes.

        Options that are not given are taken from the enclosing groups, the innermost first.

        Args:
            node: what to run, such as `Service(Learner, replay)`.
            name: the node's name in the program; by default the name of its class or function, in lower case.
            replicas: number of replicas.
            resources: what each replica requests.
            restart: "never" (the default), "on_failure", "always" or a `Restart`.
            essential: whether the program waits for this node to complete, if it ends by itself (a worker, or a
                service with `run`), and fails when it fails and is not restarted; True by default. A node that waits in
                `rw.wait_for_stop` does not end by itself and never keeps a program alive.
            environment: environment variables for its process.
            checkpoint_s: seconds between checkpoints of a service that has `state_dict` and `load_state_dict`, whether
                or not it is called. By default it is saved after calls, for at most a twentieth of its time.
                The launcher keeps the checkpoints, so the service may come back on another host. A service with `run`
                is saved where it calls `rw.checkpoint_here()`.
            preload: modules, such as "torch", that its processes share from the start, so that they start and restart
                without importing them; the modules must not start threads. By default, those of torch, numpy, scipy,
                sklearn, pandas and gymnasium that the code of the node imports.

        Returns:
            A handle; for `Colocate`, a mapping from names to the handles of its nodes.

        Raises:
            TypeError: `node` is not a node, or an argument has the wrong type.
            ValueError: the name contains characters that are not allowed, or `restart` is not a policy.
        """
        _check_kinds(node, replicas, resources)
        name = self._free_name(node) if name is None else _checked_name("a node", name)
        self._unlaunched.num_nodes += 1
        group = self._group
        spec = NodeSpec(
            name=name,
            node=node,
            unit=name,
            replicas=node.num_replicas or replicas,
            resources=resources or group.resources or default_resources(settings.current()),
            restart=restart_rule(restart if restart is not None else group.restart),
            gang=group.gang if restart is None and group.gang else name,
            essential=_first(essential, group.essential, True),
            environment={**group.environment, **(environment or {})},
            checkpoint_s=checkpoint_s,
            preload=found_preload(node.arguments().values()) if preload is None else tuple(preload),
            group=group.path,
        )
        if node.num_replicas is not None:
            spec = dataclasses.replace(spec, restart=dataclasses.replace(spec.restart, strategy="together"))
        self._note_mistakes(spec, replicas)
        if not node.parts():
            self._specs.append(spec)
            return self._connect(spec)
        for problem in node.problems():  # those of its parts come with the parts
            self._mistake(spec, problem)
        return {part: self._connect(inside) for part, inside in self._parts_of(spec)}

    def _note_mistakes(self, spec: NodeSpec, replicas: int) -> None:
        """Note where a node contradicts itself or its group."""
        if spec.node.num_replicas is not None and replicas != 1:
            self._mistake(spec, f"has {spec.node.num_replicas} ranks by its size; leave out replicas={replicas}")
        gang = self._group.gang
        if gang and spec.gang == spec.name and spec.restart.strategy == "together":
            self._mistake(
                spec,
                f"would be in two gangs: its own rule restarts its replicas together, and so does that of its group "
                f"{gang!r}; leave out restart= at one of them",
            )

    def declare(self, name: str) -> Handle[Any]:
        """Return a handle to a node that is added later under this name, for graphs with cycles.

        Args:
            name: the name under which the node will be added.

        Example:
            >>> program = Program("circle")
            >>> program.declare("judge").name
            'judge'
        """
        return Handle(_checked_name("a node", name), self._vertex(name))

    @contextlib.contextmanager
    def group(
        self,
        name: str,
        *,
        resources: Resources | None = None,
        restart: str | Restart | None = None,
        essential: bool | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Generator[None]:
        """Set defaults for all nodes added inside the block, and draw them in one box. Groups nest.

        With `restart=Restart(strategy="together")` the members form a gang: when one fails, all of them restart.

        Args:
            name: the group's name, shown in drawings.
            resources: as for `add`.
            restart: as for `add`.
            essential: as for `add`.
            environment: as for `add`.
        """
        outer = self._group
        path = f"{outer.path}/{_checked_name('a group', name)}" if outer.path else _checked_name("a group", name)
        rule = None if restart is None else restart_rule(restart)
        begins_gang = rule is not None and rule.strategy == "together"
        if begins_gang and outer.gang:
            self.mistakes.append(
                (
                    f"group {path!r}",
                    f"its members would be in two gangs: it restarts them together, and so does the group "
                    f"{outer.gang!r} around it; leave out restart= at one of them",
                )
            )
        self._group = _Group(
            path=path,
            resources=resources or outer.resources,
            restart=rule or outer.restart,
            essential=_first(essential, outer.essential, None),
            environment={**outer.environment, **(environment or {})},
            gang=path if begins_gang else ("" if rule is not None else outer.gang),
        )
        try:
            yield
        finally:
            self._group = outer

    @property
    def specs(self) -> Sequence[NodeSpec]:
        """The nodes in the order in which they were added; the nodes of a `Colocate` are listed one by one."""
        return tuple(self._specs)

    @property
    def names(self) -> frozenset[str]:
        """Names of the nodes added so far."""
        return frozenset(spec.name for spec in self._specs)

    @property
    def declared(self) -> Sequence[str]:
        """Every name that has a handle, whether or not its node was added."""
        return tuple(self._vertices)

    def spec(self, name: str) -> NodeSpec:
        """The node with a given name.

        Raises:
            KeyError: there is no such node.
        """
        for spec in self._specs:
            if spec.name == name:
                return spec
        raise KeyError(f"program {self.name!r} has no node {name!r}; it has {', '.join(sorted(self.names)) or 'none'}")

    def edges(self) -> list[DrawnEdge]:
        """The calls that are possible: caller, callee and argument, in the order in which nodes were added."""
        return drawing.edges_of(self._specs)

    def graph(self, format: Literal["dot", "json", "svg"] = "dot") -> str:
        """Draw the program: Graphviz text ("dot"), JSON ("json"), or a picture for a browser ("svg").

        Args:
            format: "dot", "json" or "svg".

        Raises:
            ValueError: the format is not one of these.
        """
        if format not in _FORMATS:
            raise ValueError(f"the graph is available as {', '.join(_FORMATS)}, not {format!r}")
        self._unlaunched.is_used()
        return _FORMATS[format](self._drawn())

    def validate(self, mode: Mode = "processes", *, engine: str | None = None, copy: bool = True) -> None:
        """Check everything that can be checked before anything starts.

        Args:
            mode: how the program is to be launched.
            engine: where it is to be launched; the setting `engine` by default. Requested resources are compared with
                available ones for this machine only.
            copy: as for `launch`; if nothing is copied, nothing needs to be picklable.

        Raises:
            ProgramInvalid: the program cannot be launched; the error lists every problem found.
            ValueError: `mode` is unknown.
        """
        self._unlaunched.is_used()
        if mode not in get_args(Mode):
            raise ValueError(f'mode must be "processes" or "threads", not {mode!r}')
        is_here = mode == "threads" or settings.current(engine=engine).engine == "local"
        problems = tuple(problems_of(self, mode=mode, machine=this_machine() if is_here else None, copy=copy))
        if problems:
            count = counted(len(problems), "problem")
            lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))
            raise ProgramInvalid(f"program {self.name!r} cannot be launched, {count}:\n{lines}", problems=problems)

    def launch(
        self,
        mode: Mode | None = None,
        engine: str | None = None,
        *,
        session: Session | None = None,
        copy: bool = True,
        track: Track = False,
        shown_as: ControlTarget | None = None,
        checkpoint: str | Path | None = None,
    ) -> RunningProgram:
        """Start the program and return at once.

        Example:
            >>> with Program("nothing").launch("threads") as running:  # doctest: +SKIP
            ...     running.wait()

        Args:
            mode: "processes" (the default), or "threads" of this process, in which breakpoints work.
            engine: where the processes run; the setting `engine` by default.
            session: the session that provides the processes; by default all programs and pools of this process share
                one.
            copy: in threads mode, whether to pickle the nodes' arguments, and the arguments and results of calls, as
                happens between processes. With False the callee gets the caller's own objects, and nothing needs to be
                picklable; this hides errors that would occur with processes.
            track: True, or the name of a project: the graph, the table of nodes, deaths with their causes and the end
                are kept as a run: the current run of this process, or a new one. Code in nodes gets it from
                `ropewalk.tracking.current_run()`.
            shown_as: what `ropewalk ps` and the page show in its place, such as the trainer whose processes these are;
                by default the program itself.
            checkpoint: a folder in which the states of services outlive the program: the same call resumes from them,
                even after the launcher was killed. It is never removed. None: states are kept only for restarts within
                the run.

        Returns:
            The running program.

        Raises:
            ProgramInvalid: the program cannot be launched; the error lists every problem found.
            StartFailed: no process could be requested; or another launcher keeps states in the folder.
            FileNotTrusted: other users could change the states in the folder.
            ValueError: `mode` is unknown, or `copy` does not go with it.
        """
        self._unlaunched.is_used()
        return launch(
            self, mode, engine, session=session, copy=copy, track=track, shown_as=shown_as, checkpoint=checkpoint
        )

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {len(self._specs)} nodes)"

    def _repr_html_(self) -> str:
        # As an image, since the style sheet of a picture would apply to the whole notebook.
        data = base64.b64encode(picture.svg(self._drawn()).encode()).decode()
        return f'<img alt="{html_text(repr(self))}" src="data:image/svg+xml;base64,{data}">'

    def _drawn(self) -> drawing.DrawnGraph:
        return drawing.DrawnGraph(self.name, self.specs, self.edges())

    def _vertex(self, name: str) -> Vertex:
        return self._vertices.setdefault(name, Vertex(self))

    def _connect(self, spec: NodeSpec) -> Handle[Any]:
        vertex = self._vertex(spec.name)
        vertex.node = spec.node
        return Handle(spec.name, vertex)

    def _parts_of(self, whole: NodeSpec) -> list[tuple[str, NodeSpec]]:
        """Add the nodes inside a node, with the options that were given for it."""
        together = isinstance(whole.node, Colocate) and whole.node.as_ == "threads"
        parts: list[tuple[str, NodeSpec]] = []
        for name, node in whole.node.parts().items():
            name = _checked_name("a node", name)
            spec = dataclasses.replace(whole, name=name, node=node, host=whole.name)
            if not together:
                spec = dataclasses.replace(spec, unit=name, gang=name if whole.gang == whole.name else whole.gang)
            self._specs.append(spec)
            parts.append((name, spec))
        return parts

    def _mistake(self, spec: NodeSpec, problem: str) -> None:
        self.mistakes.append((str(spec), problem))

    def _free_name(self, node: Node[Any]) -> str:
        wanted = re.sub(r"[^a-z0-9_.\-]", "_", node.label.lower())
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}-{number}"
        return name


def _check_kinds(node: object, replicas: object, resources: object) -> None:
    if not isinstance(node, Node):
        raise TypeError(f"a program consists of nodes, such as Service(Learner) or Worker(main), not {node!r}")
    check_kind("replicas", replicas, int, "a whole number", required=True)
    check_resources(resources)


def _checked_name(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} must be a string, not {name!r}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of {what} consists of letters, digits, and `_`, `-`, `.` within, not {name!r}")
    return name


def _first(*choices: Any) -> Any:
    return next((choice for choice in choices if choice is not None), None)
