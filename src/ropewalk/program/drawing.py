"""The graph of a program as text: for Graphviz (DOT) and for programs (JSON). `picture` draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ropewalk.engines.resources import Resources
from ropewalk.program.handle import handles_in
from ropewalk.program.node import NodeSpec
from ropewalk.program.restart_rule import Restart


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """One node can call another."""

    source: str
    """Name of the node that calls."""
    target: str
    """Name of the node that is called."""
    argument: str
    """Path of the handle in the arguments of the source, such as "args[0]"."""


def edges_of(specs: Sequence[NodeSpec]) -> list[DrawnEdge]:
    """The calls that are possible: caller, callee and argument, in the order of the nodes."""
    return [
        DrawnEdge(spec.name, handle.name, path + step)
        for spec in specs
        for path, value in spec.node.arguments().items()
        for step, handle in handles_in(value)
    ]


@dataclass(slots=True)
class DrawnBox:
    """A group, or nodes that share a process or host, with its contents; the outermost box is the program."""

    path: str
    label: str
    specs: list[NodeSpec] = field(default_factory=list[NodeSpec])
    boxes: dict[str, DrawnBox] = field(default_factory=dict[str, "DrawnBox"])


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """The contents of a drawing."""

    name: str
    specs: Sequence[NodeSpec]
    edges: Sequence[DrawnEdge]

    @property
    def missing(self) -> list[str]:
        """Names that have a handle but no node."""
        known = {spec.name for spec in self.specs}
        return list(dict.fromkeys(edge.target for edge in self.edges if edge.target not in known))

    def arguments(self) -> dict[tuple[str, str], list[str]]:
        """For each pair of caller and callee, the arguments that hold the handle."""
        found: dict[tuple[str, str], list[str]] = {}
        for edge in self.edges:
            found.setdefault((edge.source, edge.target), []).append(edge.argument)
        return found

    def boxes(self) -> DrawnBox:
        """The nodes in their groups, and within these in their hosts or processes."""
        root = DrawnBox("", self.name)
        for spec in self.specs:
            box = root
            for step in filter(None, spec.group.split("/")):
                path = f"{box.path}/{step}"
                box = box.boxes.setdefault(path, DrawnBox(path, step))
            if spec.host:
                path = f"{box.path}@{spec.host}"
                shared = "one process" if spec.unit == spec.host else "one host"
                box = box.boxes.setdefault(path, DrawnBox(path, f"{spec.host} · {shared}"))
            box.specs.append(spec)
        return root


def dot(graph: DrawnGraph) -> str:
    """The graph in Graphviz's DOT language."""
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=TB;", '  node [shape=box, style="rounded"];']
    lines += _dot_box(graph.boxes(), "  ")
    lines += [f"  {_quoted(name)} [style=dashed, color=red];" for name in graph.missing]
    for (source, target), arguments in graph.arguments().items():
        lines.append(f"  {_quoted(source)} -> {_quoted(target)} [tooltip={_quoted(', '.join(arguments))}];")
    return "\n".join([*lines, "}", ""])


def _dot_box(box: DrawnBox, indent: str) -> Iterator[str]:
    for spec in box.specs:
        times = f" x{spec.replicas}" if spec.replicas != 1 else ""
        label = f"{spec.name}{times}\n{spec.node.kind}"
        yield f"{indent}{_quoted(spec.name)} [label={_quoted(label)}];"
    for inside in box.boxes.values():
        yield f"{indent}subgraph {_quoted('cluster' + inside.path)} {{"
        yield f"{indent}  label={_quoted(inside.label)};"
        yield from _dot_box(inside, indent + "  ")
        yield f"{indent}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def json(graph: DrawnGraph) -> str:
    """The graph as JSON: `name`, `nodes` and `edges`."""
    nodes = [
        {
            "name": spec.name,
            "kind": spec.node.kind,
            "runs": spec.node.label,
            "replicas": spec.replicas,
            "resources": _resources(spec.resources),
            "restart": _restart(spec.restart),
            "essential": spec.essential,
            "group": spec.group,
            "gang": spec.gang,
            "unit": spec.unit,
            "host": spec.host,
        }
        for spec in graph.specs
    ]
    whole = {"name": graph.name, "nodes": nodes, "edges": list(graph.edges)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def _resources(resources: Resources) -> dict[str, float | None]:
    return {"cpus": resources.cpus, "gpus": resources.gpus, "memory_bytes": resources.memory_bytes}


def _restart(rule: Restart) -> dict[str, str | int | float]:
    return {
        "policy": rule.policy,
        "strategy": rule.strategy,
        "max_restarts": rule.max_restarts,
        "window_s": rule.window_s,
    }
