"""What each kind of node does where it runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.program.deferred import Deferred
from ropewalk.program.node import Node
from ropewalk.program.nodes import NODES
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.nodes.pool_node import PoolNode, ServedPool
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.program import Program
from tests.program.nodes.stand_in import StandIn


class Store:
    def __init__(self, rate: float = 1.0, lock: Any = None, peer: Any = None) -> None:
        self.rate, self.lock, self.peer = rate, lock, peer

    def push(self) -> float:
        return self.rate


class Runs(Store):
    def __init__(self) -> None:
        super().__init__()
        self.has_run = False

    def run(self) -> None:
        self.has_run = True


class Bench:
    """A node that runs in a thread until the test has seen enough."""

    def __init__(self, node: Node[Any], context: Any) -> None:
        self.context = context
        self.thread = threading.Thread(target=node.run, args=(context,))

    def __enter__(self) -> StandIn:
        self.thread.start()
        assert self.context.is_served.wait(120)
        return self.context

    def __exit__(self, *exc: object) -> None:
        self.context.stop.set()
        self.thread.join(120)
        assert not self.thread.is_alive(), "a node ends when it shall stop"


def make(answer: float) -> Store:
    return Store(answer)


def test_every_kind_of_node_is_listed_under_its_name() -> None:
    folder = Path(inspect.getfile(Service)).parent
    files = {path.stem.removesuffix("_node") for path in folder.glob("*.py")} - {"__init__"}
    assert set(NODES) == files and all(node.kind == kind for kind, node in NODES.items())


def test_a_service_is_made_from_clients_and_serves_until_it_shall_stop() -> None:
    peer = object()
    handle = Program("p").add(Service(Store), name="peer")
    node = Service(Store, 0.5, Deferred(threading.Lock), peer=[handle])
    assert not node.finite
    with Bench(node, StandIn({"peer": peer})) as context:
        assert context.served.rate == 0.5 and context.served.lock.acquire() and context.served.peer == [peer]
        assert list(context.methods) == ["push"]
        assert context.is_waiting.wait(120)


def test_a_service_that_runs_is_complete_when_it_has_run() -> None:
    context: Any = StandIn()
    node = Service(Runs)
    assert node.finite
    node.run(context)
    assert context.served.has_run and list(context.methods) == ["push"]


def test_a_service_may_come_from_a_function_that_says_its_class() -> None:
    node = Service(make, 3.0)
    assert list(node.methods() or ()) == ["push"] and not node.finite
    with Bench(node, StandIn()) as context:
        assert context.served.push() == 3.0


def test_a_worker_calls_its_function_with_clients() -> None:
    seen: list[Any] = []
    handle = Program("p").add(Service(Store), name="store")
    context: Any = StandIn({"store": "client"})
    Worker(lambda *args, **kwargs: seen.append((args, kwargs)), 1, x={"y": handle}).run(context)
    assert seen == [((1,), {"x": {"y": "client"}})]


def test_a_worker_of_a_class_makes_the_object_and_runs_it() -> None:
    made: list[Any] = []

    class Trainer:
        def __init__(self, steps: int) -> None:
            self.steps = steps
            made.append(self)

        def run(self) -> None:
            self.steps += 1

    context: Any = StandIn()
    Worker(Trainer, 3).run(context)
    assert [trainer.steps for trainer in made] == [4] and Worker(Trainer, 3).methods() is None


def test_colocated_nodes_run_by_themselves() -> None:
    context: Any = StandIn()
    with pytest.raises(TypeError, match="each of which runs by itself"):
        Colocate({"a": Worker(print)}).run(context)


def square(x: int) -> int:
    return x * x


def add(x: int, y: int = 0) -> int:
    return x + y


def test_a_pool_node_serves_a_pool() -> None:
    node = PoolNode(1, name="shared")
    with Bench(node, StandIn()) as context:
        pool: ServedPool = context.served
        assert set(context.methods) == {"map", "starmap", "apply", "imap", "imap_unordered", "status", "resize"}
        assert context.methods["imap"].streams and context.methods["map"].concurrency > 1
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        assert pool.starmap(add, [(1, 2)]) == [3] and pool.apply(add, (1,), {"y": 5}) == 6
        stream = pool.imap(square, range(3))
        assert isinstance(stream, Iterator) and list(stream) == [0, 1, 4]
        assert sorted(pool.imap_unordered(square, range(3))) == [0, 1, 4]
        assert context.is_waiting.wait(120)
        pool.resize(2)
        assert pool.status().name == "shared" and pool.status().done == 4 + 1 + 1 + 3 + 3
