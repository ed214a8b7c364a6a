"""The `View` of a program: its status, as `ropewalk ps`, the page and reports show the state of anything that runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ropewalk.control.rate import Rate
from ropewalk.control.stragglers import stragglers
from ropewalk.control.view import ProcessView, View
from ropewalk.program.conductor import Conductor
from ropewalk.program.drawing import edges_of
from ropewalk.program.messages import NodeCalls
from ropewalk.program.node import NodeSpec
from ropewalk.program.status import NodeStatus, ProgramStatus

_LEAST_WAITING = 8
"""A replica is a straggler if this many more calls wait for it than for the others of its node."""
_LEAST_CALL_S = 1e-3
"""Or if a call takes longer there by this time, in seconds: below, chance decides."""


class ProgramViewer:
    """Makes the views of one program; any thread may look.

    Args:
        conductor: of the program.
        specs: its nodes.
        id: as in `View`.
    """

    def __init__(self, conductor: Conductor, specs: Sequence[NodeSpec], id: str) -> None:
        self._conductor = conductor
        self._specs = {spec.name: spec for spec in specs}
        self._id = id
        self._rate = Rate(time.monotonic())
        self._edges: list[tuple[str, str]] | None = None

    def view(self, status: ProgramStatus, panels: Iterable[str]) -> View:
        """Return what the program shows.

        Args:
            status: its state now.
            panels: names of the pictures whose data is wanted.
        """
        now = time.monotonic()
        num_calls = sum(node.calls_done for node in status.nodes)
        plain = status.as_view()
        busy_s = [self._busy_s(node) for node in status.nodes]
        silent_s = [self._silent_s(node, now) for node in status.nodes]
        return replace(
            plain,
            id=self._id,
            facts={**plain.facts, "calls_per_s": round(self._rate.at(now, num_calls), 3)},
            last_failure=self._conductor.last_failure,
            processes=processes_of(status.nodes, busy_s, silent_s),
            events=self._conductor.log.views(),
            panels={"graph": self._graph(status.nodes, busy_s)} if "graph" in panels else {},
            offers=("graph",),
            actions=("stop",),
            process_actions=("restart", "stack") if status.mode == "threads" else ("kill", "restart", "stack"),
        )

    def _busy_s(self, node: NodeStatus) -> float:
        calls = self._calls_of(node)
        return calls.busy_s if calls else 0.0

    def _calls_of(self, node: NodeStatus) -> NodeCalls | None:
        """Return what a replica has reported of its calls since it was started last."""
        calls = self._conductor.reports.calls.get((node.name, node.replica))
        return calls if calls and calls.unit.generation == node.generation else None

    def _silent_s(self, node: NodeStatus, now: float) -> float:
        """Seconds since the agent has measured its process, or since it should have answered."""
        unit = self._conductor.units.at(self._specs[node.name].unit, node.replica)
        if unit is None:
            return 0.0
        asked = unit.asked
        return max(self._conductor.hosting.silence_of(unit.name), 0.0 if asked is None else now - asked)

    def _graph(self, nodes: Sequence[NodeStatus], busy_s: Sequence[float]) -> dict[str, Any]:
        if self._edges is None:  # arguments are searched once
            self._edges = sorted({(edge.source, edge.target) for edge in edges_of(list(self._specs.values()))})
        kinds = {name: spec.node.kind for name, spec in self._specs.items()}
        edges = graph_edges(self._edges, self._conductor.reports.calls_made())
        return {"nodes": graph_nodes(kinds, nodes, busy_s), "edges": edges}


def graph_nodes(
    kinds: Mapping[str, str], replicas: Sequence[NodeStatus], busy_s: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the nodes of the graph of the page, each with the sums over its replicas.

    Args:
        kinds: the kind of each node, by name.
        replicas: the state of each replica.
        busy_s: seconds that the calls took which each replica has answered.
    """
    by_name: dict[str, list[tuple[NodeStatus, float]]] = {name: [] for name in kinds}
    for each, seconds in zip(replicas, busy_s, strict=True):
        by_name[each.name].append((each, seconds))
    found: list[dict[str, Any]] = []
    for name, mine in by_name.items():
        num_done = sum(each.calls_done for each, _ in mine)
        found.append(
            {
                "name": name,
                "kind": kinds[name],
                "replicas": len(mine),
                "running": sum(each.state == "running" for each, _ in mine),
                "over": sum(each.state in ("completed", "ended") for each, _ in mine),
                "calls_done": num_done,
                "calls_waiting": sum(each.calls_waiting for each, _ in mine),
                "mean_call_s": sum(seconds for _, seconds in mine) / num_done if num_done else None,
            }
        )
    return found


def graph_edges(
    edges: Iterable[tuple[str, str]], made: Iterable[tuple[str, Mapping[str, int]]]
) -> list[dict[str, Any]]:
    """Return the edges of the graph of the page, each with the calls that all replicas of its caller have made.

    Args:
        edges: pairs of a caller and a service, by name.
        made: names of nodes, each with a number of its calls by name of the service; a node may be named repeatedly.
    """
    sums: Counter[tuple[str, str]] = Counter()
    for source, calls in made:
        for target, num in calls.items():
            sums[source, target] += num
    return [{"from": source, "to": target, "calls": sums[source, target]} for source, target in edges]


def processes_of(
    nodes: Sequence[NodeStatus], busy_s: Sequence[float], silent_s: Sequence[float]
) -> tuple[ProcessView, ...]:
    """Return the replicas as processes, with marks on those that are slower than the others of their node.

    Args:
        nodes: the state of each replica.
        busy_s: seconds that the calls took which each has answered.
        silent_s: seconds for which each was not heard of.
    """
    groups = [node.name for node in nodes]
    waiting = [node.calls_waiting if node.state == "running" else None for node in nodes]
    call_s = [
        seconds / node.calls_done if node.calls_done else None for node, seconds in zip(nodes, busy_s, strict=True)
    ]
    piles = stragglers(groups, waiting, least=_LEAST_WAITING)
    drags = stragglers(groups, call_s, least=_LEAST_CALL_S)
    return tuple(
        replace(node.as_process(), silent_s=seconds, straggler=pile or drag)
        for node, seconds, pile, drag in zip(nodes, silent_s, piles, drags, strict=True)
    )
