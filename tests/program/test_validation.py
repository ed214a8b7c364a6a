"""Everything that is wrong with a program, told at once and with names."""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from typing import Any

import pytest

from ropewalk.calls.client import Client
from ropewalk.engines.resources import Resources
from ropewalk.errors import HandleNotConnected, ProgramInvalid
from ropewalk.program.deferred import Deferred
from ropewalk.program.nodes.cache import Cache
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.nodes.pool_node import PoolNode
from ropewalk.program.nodes.rank_group import RankGroup
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.program import Program
from ropewalk.program.restart_rule import Restart
from ropewalk.program.validation import Machine, problems_of

FIBERS: Any = "fibers"
TOGETHER = Restart("on_failure", strategy="together")


class Learner:
    def __init__(self, *, capacity: int = 1, other: Any = None) -> None: ...
    def push(self) -> None: ...


class Simulator:
    def run(self, x: int) -> None: ...


class Abstract(abc.ABC):
    @abc.abstractmethod
    def act(self) -> None: ...


@dataclasses.dataclass
class Config:
    lock: Any


class Box:
    """Not a dataclass: nobody looks for handles in it."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Angry:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def work(*args: Any, **kwargs: Any) -> None: ...
def one(x: int) -> None: ...
def maker():  # type: ignore[no-untyped-def]
    return Learner()


def made() -> Learner:
    return Learner()


def problems(program: Program, mode: Any = "processes") -> tuple[str, ...]:
    with pytest.raises(ProgramInvalid) as caught:
        program.validate(mode)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def problem_of(node: Any, **options: Any) -> str:
    """The one problem of a program with a store and one more node."""
    program = Program("test")
    program.add(node, name="node", **options)
    (problem,) = problems(program)
    return problem


def test_a_sound_program_has_no_problems() -> None:
    program = Program("sound")
    learner = program.add(Service(Learner, capacity=2), name="learner")
    program.add(Service(made), name="made")
    program.add(Cache(learner, 1, only=["push"]), name="cache")
    program.add(Worker(one, Deferred(threading.Lock)), name="worker", replicas=64)
    program.add(PoolNode(2, name="p"), name="pool")
    program.validate()
    program.validate("threads")


def test_all_problems_are_told_at_once() -> None:
    program = Program("sick")
    program.add(Service(Learner, capcity=2), name="learner")
    program.add(Worker(one), name="worker", replicas=0)
    program.add(Worker(work, program.declare("nobody")), name="caller")
    assert problems(program) == (
        "'nobody' was declared, but never added; add it with program.add(..., name='nobody')",
        "worker 'worker': replicas must be at least 1, not 0",
        "service 'learner': Learner.__init__() got an unexpected argument 'capcity'; did you mean 'capacity'? "
        "It takes (*, capacity=1, other=None)",
        "worker 'worker': one() misses the argument 'x'. It takes (x)",
    )


def test_a_node_that_was_not_added_is_told_from_its_handle() -> None:
    # It arrived at the worker, which failed there: 'Service' object has no attribute 'push'.
    assert problem_of(Worker(work, [Service(Learner)])) == (
        "worker 'node': args[0][0] is a service (Learner) itself, of which no client can arrive; give a handle to it: "
        "`handle = program.add(Service(...))` adds it, and returns the handle"
    )
    program, learner = Program("added"), Service(Learner)
    program.add(learner, name="learner")
    program.add(Worker(work, learner=learner), name="node")
    assert problems(program) == (
        "worker 'node': kwargs['learner'] is a service (Learner) itself, of which no client can arrive; give the "
        "handle that program.add(...) returned for 'learner'",
    )


def test_a_client_is_no_argument() -> None:
    # What was said was that a select.epoll deep inside it cannot be pickled.
    nobody: Any = None
    client = Client(nobody, "learner", "any", {})
    assert problem_of(Worker(work, client)) == (
        "worker 'node': args[0] is <client of learner>, and cannot be sent: it belongs to the process that has it. "
        "Give the handle of 'learner', which program.add(...) returned, to the node that is to call it when the "
        "program is built; there it arrives as a client"
    )
    assert "<client of learner> cannot be sent: it belongs to" in problem_of(Worker(work, Box(client)))


def test_a_node_cannot_be_called() -> None:
    with pytest.raises(HandleNotConnected, match=r"`.push` was asked of a service \(Learner\).*`handle = program.add"):
        Service(Learner).push()  # type: ignore[attr-defined]
    assert not hasattr(Service(Learner), "_repr_html_")


def test_a_program_without_nodes_is_invalid() -> None:
    assert problems(Program("empty"))[0].startswith("the program has no nodes")


class Crowded:
    """Was served, and whoever called one of these got "no method '__call__'": they are names of the client's own."""

    def all(self) -> int:
        return 1

    def any(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (
            lambda: Service(Simulator),
            "Simulator.run is the service's own work, which it begins by itself without arguments, but run() ",
        ),
        (lambda: Worker(Learner), "class Learner has no method `run`, which is what a worker does"),
        (lambda: Service(Abstract), "Abstract is abstract: act must be defined"),
        (lambda: Service(maker), "maker() does not say which class it returns"),
        (lambda: Service(Crowded), "Crowded has public methods that nobody could call: all, any;"),
        (lambda: PoolNode(0), "a pool needs at least 1 process, not 0"),
        (lambda: PoolNode(1, engine="slurm"), "give engine to program.launch instead"),
        (lambda: PoolNode(1, max_death=3), "unexpected argument 'max_death'; did you mean 'max_deaths'?"),
        (lambda: Worker(work, [Config(threading.Lock())]), "worker 'node': args[0][0].lock"),
        (lambda: Worker(work, lock=threading.Lock()), "kwargs['lock']"),
        (lambda: Worker(work, Angry()), "args[0] cannot be pickled: RuntimeError: not me"),
    ],
)
def test_a_node_that_cannot_work_is_named_with_its_argument(node: Any, said: str) -> None:
    assert said in problem_of(node()) and problem_of(node()).split()[1] == "'node':"


def test_an_unpicklable_argument_is_answered_with_the_way_out() -> None:
    assert "Deferred(function, *args)" in problem_of(Worker(work, threading.Lock()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"environment": {"A": 1}}, "environment needs names and values that are strings, not 'A': 1"),
        ({"checkpoint_s": 0}, "checkpoint_s must be a number of seconds above 0"),
        ({"resources": Resources(memory="900Ti")}, "asks for 921600.0 GiB for each replica"),
        ({"resources": Resources(cpus=100_000)}, "asks for 100000 CPUs for each replica, but only"),
    ],
)
def test_what_a_node_cannot_have_is_told(options: Any, said: str) -> None:
    assert said in problem_of(Worker(work), **options)


def test_resources_are_compared_with_a_machine_only_where_it_is_known() -> None:
    program = Program("gpus")
    program.add(Worker(work), name="a", resources=Resources(cpus=3, gpus=2, memory="2Gi"))
    machine = Machine(cpus=4, memory_bytes=2**32, gpus=1)
    assert list(problems_of(program, mode="processes", machine=machine)) == [
        "worker 'a': asks for 2 GPUs for each replica, but this machine has 1"
    ]
    assert not list(problems_of(program, mode="processes", machine=None))


def test_more_gpus_in_all_than_a_machine_has_are_told_with_who_asks_for_them() -> None:
    program = Program("gpus")
    program.add(Worker(work), name="a", replicas=2, resources=Resources(gpus=1))
    program.add(Worker(work), name="b", resources=Resources(gpus=2))
    program.add(Worker(work), name="c", resources=Resources(gpus=1), environment={"CUDA_VISIBLE_DEVICES": "0"})

    def found(gpus: int) -> list[str]:
        return list(problems_of(program, mode="processes", machine=Machine(cpus=8, memory_bytes=2**32, gpus=gpus)))

    assert found(3) == [
        "its nodes ask for 4 GPUs in all (worker 'a' for 2 x 1, worker 'b' for 1 x 2), and this machine has 3; "
        "start fewer replicas"
    ]
    assert found(4) == []


def test_two_nodes_of_one_name_are_told() -> None:
    program = Program("twins")
    program.add(Worker(work), name="a")
    program.add(Colocate({"a": Service(Learner)}), name="host")
    assert problems(program) == ("2 nodes are named 'a' (worker, service); give each another name=",)


def test_a_name_that_was_misspelt_is_recognised() -> None:
    program = Program("spelling")
    program.add(Worker(work, program.declare("learnr")), name="worker")
    program.add(Service(Learner), name="learner")
    assert "did you mean 'learner'?" in problems(program)[0]


def test_a_handle_of_another_program_is_told() -> None:
    other = Program("other").add(Service(Learner), name="learner")
    program = Program("mine")
    program.add(Service(Learner), name="learner")
    program.add(Worker(work, {"x": other}), name="worker")
    assert problems(program) == (
        "worker 'worker': args[0]['x'] is a handle to 'learner' of another program, which runs for itself",
    )


def test_a_handle_to_what_cannot_be_called_is_told() -> None:
    program = Program("worker")
    handle = program.add(Worker(work), name="worker")
    program.add(Cache(handle, 1), name="cache")
    assert len(problems(program)) == 1
    assert "target is a handle to 'worker', a worker, which cannot be called" in problems(program)[0]


def test_a_circle_of_caches_is_told() -> None:
    program = Program("circle")
    later = program.declare("b")
    first = program.add(Cache(later, 1), name="a")
    program.add(Cache(first, 1), name="b")
    assert all("cannot be called" in problem for problem in problems(program))


def test_a_cache_of_a_method_that_is_not_there_is_told() -> None:
    program = Program("cache")
    program.add(Cache(program.add(Service(Learner), name="learner"), 1, only=["pull"]), name="cache")
    assert problems(program) == ("cache 'cache': only names 'pull', but 'learner' has no such method; it has push",)


def test_a_replica_that_is_not_there_is_told() -> None:
    program = Program("replica")
    learner = program.add(Service(Learner), name="learner", replicas=2)
    program.add(Worker(work, learner[1], learner[2]), name="worker")
    assert problems(program) == ("worker 'worker': args[1] is replica 2 of 'learner', which has 2, counted from 0",)


def test_a_handle_where_nobody_looks_is_told() -> None:
    program = Program("hidden")
    learner = program.add(Service(Learner), name="learner")
    program.add(Worker(work, Box(learner)), name="boxed")
    program.add(Worker(lambda: learner.push()), name="closure")  # type: ignore[attr-defined]
    boxed, closure = problems(program)
    assert boxed.startswith("worker 'boxed': args[0] refers to the handle 'learner' where it is not looked for")
    assert closure.startswith("worker 'closure': function refers to the handle 'learner'")


def test_a_node_in_two_gangs_is_told() -> None:
    program = Program("gangs")
    with program.group("outer", restart=TOGETHER):
        program.add(Worker(work), name="worker", restart=TOGETHER)
        with program.group("inner", restart=TOGETHER):
            program.add(Worker(work), name="deep")
    worker, group = problems(program)
    assert worker.startswith("worker 'worker': would be in two gangs") and "'outer'" in worker
    assert group.startswith("group 'outer/inner': its members would be in two gangs")


def test_ranks_have_no_replicas() -> None:
    assert "has 2 ranks by its size; leave out replicas=3" in problem_of(RankGroup(work, 2), replicas=3)


def test_what_cannot_be_colocated_is_told() -> None:
    program = Program("colocate")
    program.add(Colocate({"r": RankGroup(work, 2), "c": Colocate({"w": Worker(work)})}), name="host")
    ranks, colocate = problems(program)[:2]
    assert ranks.startswith("colocate 'host': 'r' is a rank_group node, which cannot be colocated")
    assert colocate.startswith("colocate 'host': 'c' is a colocate node, which cannot be colocated")


def test_threads_refuse_what_they_cannot_give() -> None:
    program = Program("threads")
    program.add(RankGroup(work, 2), name="train")
    program.add(Worker(work), name="env", environment={"A": "1"})
    program.add(Worker(work), name="big", resources=Resources(memory="1Mi"))
    program.validate("processes")
    ranks, environment, memory = problems(program, "threads")
    assert ranks.startswith("rank_group 'train': cannot run as a thread: each rank needs a process of its own")
    assert environment.startswith("worker 'env': cannot have an environment as a thread")
    assert memory.startswith("worker 'big': cannot have memory of its own as a thread")
    assert all('mode="processes"' in problem for problem in (ranks, environment, memory))


@pytest.mark.parametrize(
    ("kind", "args", "said"),
    [
        (Service, (Learner(),), "Service needs a class and its arguments"),
        (Worker, (3,), "Worker needs a function"),
        (RankGroup, (work, "4"), "size must be a whole number of ranks"),
        (RankGroup, (work, 0), "size must be at least 1 rank, not 0"),
        (RankGroup, (4, work), "RankGroup needs a function that each rank runs, not 4"),
        (Cache, (Learner, 1), "Cache needs a handle"),
        (Cache, (Program("p").declare("x"), 0), "ttl_s must be a number of seconds above 0"),
        (functools.partial(Cache, only="push"), (Program("p").declare("x"), 1), r"only=\['push'\]"),
        (Colocate, ({},), "at least one node"),
        (Colocate, ({"a": Learner},), "Colocate needs nodes, such as"),
        (lambda *args: Colocate(*args, as_=FIBERS), ({"a": Worker(work)},), '"threads" or "processes", not'),
        (Deferred, (3,), "Deferred needs a class or function to call, not 3"),
    ],
)
def test_a_node_that_cannot_be_made_is_refused_at_the_door(kind: Any, args: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        kind(*args)
