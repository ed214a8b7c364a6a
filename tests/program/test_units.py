"""Units: which nodes live and die together, and which start of them is meant."""

from __future__ import annotations

from ropewalk.engines.resources import Resources
from ropewalk.program.instructions import NodeRule
from ropewalk.program.restart_rule import Restart
from ropewalk.program.units import Units
from tests.program.recording import name_of, service, worker

RULE = Restart(max_restarts=3)


def test_nodes_of_one_unit_are_one_thing_to_the_supervisor() -> None:
    specs = [
        worker("actor", replicas=2, essential=False),
        service("replay", unit="host", restart=RULE, gang="learners"),
        worker("learner", unit="host", restart=RULE, gang="learners"),
    ]
    units = Units(specs)
    assert {unit: [spec.name for spec in nodes] for unit, nodes in units.nodes.items()} == {
        "actor": ["actor"],
        "host": ["replay", "learner"],
    }
    assert units.rules() == [
        NodeRule(name="actor", replicas=2, restart=Restart("never"), gang="actor", essential=False, finite=True),
        NodeRule(name="host", replicas=1, restart=RULE, gang="learners", essential=True, finite=True),
    ]
    assert units.sizes == {"actor": 2, "host": 1}


def test_a_unit_of_services_alone_does_not_end_by_itself() -> None:
    units = Units([service("a", unit="u"), service("b", unit="u"), worker("w")])
    assert not units.is_finite("u") and units.is_finite("w")


def test_only_the_latest_start_of_a_replica_is_found() -> None:
    units = Units([worker("w", replicas=2)])
    old = units.begin(name_of("w", 1, 0))
    assert units.find(name_of("w", 1, 0)) is old is units.at("w", 1)
    assert old.label == "w.1" and old.missing == {"w"}
    assert units.find(name_of("w", 1, 1)) is None and units.find(name_of("w", 0, 0)) is None
    units.end(old)
    assert units.find(name_of("w", 1, 0)) is None is units.at("w", 1)
    new = units.begin(name_of("w", 1, 1))
    assert units.find(name_of("w", 1, 0)) is None and units.find(name_of("w", 1, 1)) is new
    assert list(units) == [new] and len(units) == 1


def test_units_may_end_while_somebody_goes_through_them() -> None:
    units = Units([worker("w", replicas=3)])
    for replica in range(3):
        units.begin(name_of("w", replica))
    for unit in units:
        units.end(unit)
    assert len(units) == 0


def test_a_unit_asks_for_what_its_greatest_node_needs_and_has_the_variables_of_all() -> None:
    small = service("a", unit="u", resources=Resources(cpus=1), environment={"A": "1", "BOTH": "a"})
    great = worker("b", unit="u", resources=Resources(cpus=4), environment={"B": "2", "BOTH": "b"})
    units = Units([small, great])
    assert units.resources("u") == Resources(cpus=4)
    assert units.environment("u") == {"A": "1", "B": "2", "BOTH": "b"}
