"""The state of the random generator goes from random stage to random stage."""

from __future__ import annotations

from ropewalk.pipeline.plans import Edge, Plan, Stage
from ropewalk.pipeline.stages.wiring import wire


def plan(*edges: tuple[str, int, tuple[int, ...]]) -> Plan:
    stages = tuple(Stage(id, (f"op{id}",), (id,)) for id in range(4))
    return Plan(stages, tuple(Edge(tensor, source, targets, 4, 4) for tensor, source, targets in edges))


def test_it_rides_on_an_edge_that_joins_them() -> None:
    wired = wire(plan(("a", 0, (1, 3)), ("b", 1, (2,)), ("c", 2, (3,))), [0, 3])
    assert wired.plan.edges == plan(("a", 0, (1, 3)), ("b", 1, (2,)), ("c", 2, (3,))).edges
    assert wired.state_goes_on == {0: ("a", 3)}
    assert wired.state_comes_on == {3: "a"}


def test_it_gets_an_edge_of_its_own_between_branches() -> None:
    wired = wire(plan(("a", 0, (1, 2)), ("b", 1, (3,)), ("c", 2, (3,))), [1, 2, 3])
    assert [(edge.tensor, edge.source, edge.targets) for edge in wired.plan.edges[3:]] == [("generator.1", 1, (2,))]
    assert wired.plan.edges[3].gradient_bytes == 0
    assert wired.state_comes_on == {2: "generator.1", 3: "c"}


def test_one_random_stage_needs_nothing() -> None:
    wired = wire(plan(("a", 0, (1,))), [2])
    assert not wired.state_comes_on and not wired.state_goes_on
