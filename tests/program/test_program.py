"""Building a graph: names, groups, edges, circles."""

from __future__ import annotations

import dataclasses
import doctest
from types import ModuleType
from typing import Any

import pytest

from ropewalk.calls import markers
from ropewalk.engines.resources import Resources
from ropewalk.program import deferred, program, signatures
from ropewalk.program.nodes import colocate
from ropewalk.program.nodes.cache import Cache
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.nodes.rank_group import RankGroup
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.program import DrawnEdge, Program
from ropewalk.program.restart_rule import Restart


class Store:
    def __init__(self, other: Any = None) -> None: ...
    def push(self, value: int) -> None: ...


@dataclasses.dataclass(frozen=True)
class Config:
    stores: dict[str, Any]


def work(*args: Any, **kwargs: Any) -> None: ...


def test_passing_a_handle_is_the_edge() -> None:
    program = Program("edges")
    store = program.add(Service(Store))
    cache = program.add(Cache(store, ttl_s=1))
    program.add(Worker(work, [0, store], config=Config({"a": cache.all})))
    assert program.edges() == [
        DrawnEdge("store-cache", "store", "target"),
        DrawnEdge("work", "store", "args[0][1]"),
        DrawnEdge("work", "store-cache", "kwargs['config'].stores['a']"),
    ]


def test_circles_go_through_declared_names() -> None:
    program = Program("circle")
    later = program.declare("later")
    assert later.methods is None
    first = program.add(Service(Store, later), name="first")
    assert program.add(Service(Store, first), name="later") == later
    assert list(later.methods or ()) == ["push"], "the handle that was given out learns what was added"
    assert [(edge.source, edge.target) for edge in program.edges()] == [("first", "later"), ("later", "first")]
    program.validate()


def test_nodes_without_a_name_are_called_after_what_they_run() -> None:
    program = Program("names")
    handles = [program.add(Service(Store)), program.add(Service(Store)), program.add(Worker(lambda: None))]
    assert [handle.name for handle in handles] == ["store", "store-2", "function"]


def test_groups_give_defaults_and_the_inner_one_wins() -> None:
    program = Program("groups")
    big, small = Resources(cpus=2), Resources(cpus=0.5)
    with program.group("outer", resources=big, restart="always", essential=False, environment={"A": "1", "B": "1"}):
        program.add(Worker(work), name="member")
        with program.group("inner", resources=small, environment={"B": "2"}):
            program.add(Worker(work), name="deep")
            program.add(Worker(work), name="own", restart="never", essential=True, resources=big)
    program.add(Worker(work), name="outside")
    member, deep, own, outside = program.specs
    assert (member.group, deep.group, outside.group) == ("outer", "outer/inner", "")
    assert (member.resources, deep.resources, own.resources, outside.resources) == (big, small, big, Resources())
    assert [spec.restart.policy for spec in program.specs] == ["always", "always", "never", "never"]
    assert [spec.essential for spec in program.specs] == [False, False, True, True]
    assert deep.environment == {"A": "1", "B": "2"} and outside.environment == {}


def test_a_group_that_restarts_together_is_a_gang() -> None:
    program = Program("gangs")
    with program.group("g", restart=Restart("on_failure", strategy="together")):
        program.add(Worker(work), name="a")
        with program.group("inner"):
            program.add(RankGroup(work, 2), name="b")
        program.add(Worker(work), name="alone", restart="never")
        with program.group("free", restart="on_failure"):
            program.add(Worker(work), name="free")
    assert [spec.gang for spec in program.specs] == ["g", "g", "alone", "free"]
    assert program.specs[0].restart == program.specs[1].restart
    program.validate()


def test_ranks_are_as_many_as_they_say_and_a_gang() -> None:
    program = Program("ranks")
    program.add(RankGroup(work, 4, "x"), name="train", restart="on_failure")
    (spec,) = program.specs
    assert (spec.replicas, spec.gang, spec.restart.strategy, spec.restart.policy) == (
        4,
        "train",
        "together",
        "on_failure",
    )


def test_colocated_nodes_have_handles_and_share_a_process() -> None:
    program = Program("colocate")
    nodes = {"store": Service(Store), "work": Worker(work)}
    handles = program.add(Colocate(nodes), name="host", replicas=3, resources=Resources(cpus=2))
    assert list(handles) == ["store", "work"] and list(handles["store"].methods or ()) == ["push"]
    assert [(s.name, s.unit, s.host, s.gang, s.replicas) for s in program.specs] == [
        ("store", "host", "host", "host", 3),
        ("work", "host", "host", "host", 3),
    ]


def test_nodes_colocated_as_processes_share_a_host_and_live_for_themselves() -> None:
    program = Program("colocate")
    program.add(Colocate({"a": Service(Store), "b": Service(Store)}, as_="processes"), name="host")
    assert [(s.name, s.unit, s.host, s.gang) for s in program.specs] == [
        ("a", "a", "host", "a"),
        ("b", "b", "host", "b"),
    ]


def test_a_spec_is_found_by_its_name() -> None:
    program = Program("find")
    program.add(Service(Store), name="a")
    assert program.spec("a").name == "a" and str(program.spec("a")) == "service 'a'"
    with pytest.raises(KeyError, match="has no node 'b'; it has a"):
        program.spec("b")


@pytest.mark.parametrize("module", [colocate, deferred, markers, program, signatures], ids=lambda m: m.__name__)
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda p: p.add(Store), "a program consists of nodes, such as Service"),
        (lambda p: p.add(Worker(work), replicas="2"), "replicas is of type str; give a whole number"),
        (lambda p: p.add(Worker(work), resources={"cpus": 2}), "resources is of type dict; give ropewalk.Resources"),
        (lambda p: p.add(Worker(work), restart="on-failure"), "did you mean 'on_failure'"),
        (lambda p: p.add(Worker(work), name="a/b"), "letters, digits"),
        (lambda p: p.declare(3), "the name of a node must be a string"),
        (lambda p: Program(""), "the name of a program"),
        (lambda p: p.graph("png"), "the graph is available as dot, json, svg, not 'png'"),
        (lambda p: p.validate("fibers"), 'mode must be "processes" or "threads", not \'fibers\''),
    ],
)
def test_what_cannot_be_is_refused_at_the_door(mistake: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        mistake(Program("door"))
