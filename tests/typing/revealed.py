"""What a type checker knows of a program. Never run: `test_revealed` lets pyright read it, and compares.

Each `reveal_type` is followed by a comment with the type that it must have. Each
mistake is marked as one, and a mark where pyright sees no mistake is an error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Iterator
from typing import reveal_type

import ropewalk as rw
from ropewalk import exchange, pipeline, population, training
from ropewalk.calls.markers import batched, concurrent, idempotent, method
from ropewalk.program.deferred import Deferred
from ropewalk.program.nodes.cache import Cache
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.nodes.pool_node import PoolNode, ServedPool
from ropewalk.program.nodes.rank_group import RankGroup
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.program import Program


class Gradient: ...


class ParameterServer:
    def __init__(self, rate: float, *, peer: ParameterServer | None = None) -> None: ...

    @method
    def push(self, gradient: Gradient, *, step: int = 0) -> int:
        return step

    @idempotent
    @method
    @concurrent(4)
    def steps(self) -> Iterator[int]:
        yield 1

    @method
    @batched(32, 0.01)
    def act(self, observation: float) -> str:
        return str(observation)

    def plain(self, x: int) -> float:
        return x / 2


def actor(ps: ParameterServer, gradient: Gradient) -> None:
    """Inside a node: a parameter annotated with the class of a service."""
    reveal_type(ps.plain(1))  # float
    reveal_type(ps.push(gradient))  # int
    reveal_type(ps.push(gradient, step=3))  # int
    reveal_type(ps.push.future(gradient))  # Future[int]
    reveal_type(ps.push.future(gradient).result())  # int
    reveal_type(ps.push.aio(gradient))  # Awaitable[int]
    reveal_type(ps.push.send(gradient))  # None
    reveal_type(ps.steps())  # Iterator[int]
    reveal_type(ps.act.future(1.0))  # Future[str]
    ps.push("no gradient")  # pyright: ignore[reportArgumentType]
    ps.push.future(gradient, stepp=1)  # pyright: ignore[reportCallIssue]


async def asynchronous(ps: ParameterServer, gradient: Gradient) -> None:
    reveal_type(await ps.push.aio(gradient))  # int


def made() -> ParameterServer:
    return ParameterServer(0.1)


program = Program("typed")
later = program.declare("later")
reveal_type(Service(ParameterServer, 0.1, peer=later))  # Service[ParameterServer]
server = program.add(Service(ParameterServer, 0.1, peer=later), name="ps")
reveal_type(server)  # Handle[ParameterServer]
reveal_type(server.all)  # Handle[ParameterServer]
reveal_type(server[0])  # Handle[ParameterServer]
reveal_type(program.add(Service(made)))  # Handle[ParameterServer]
reveal_type(program.add(Cache(server, ttl_s=1)))  # Handle[ParameterServer]
reveal_type(program.add(PoolNode(2)))  # Handle[ServedPool]
reveal_type(program.add(Worker(actor, server, Deferred(Gradient)), replicas=4))  # Handle[Any]
reveal_type(program.add(RankGroup(actor, 2)))  # Handle[Any]
reveal_type(program.add(Colocate({"a": Service(made)})))  # Mapping[str, Handle[Any]]
reveal_type(Deferred(Gradient))  # Deferred[Gradient]
server.push(Gradient())  # pyright: ignore[reportAttributeAccessIssue]


def mapper(pool: ServedPool) -> None:
    reveal_type(pool.map(str, range(3)))  # list[str]
    reveal_type(pool.imap_unordered(str, range(3)))  # Iterator[str]
    reveal_type(pool.apply(len, ("abc",)))  # int


def names(session: rw.Session) -> None:
    """What packages export, and load when it is used."""
    reveal_type(rw.Pool(2))  # Pool
    reveal_type(rw.cpu_count())  # int
    reveal_type(rw.errors.WorkerLost)  # type[WorkerLost]
    reveal_type(rw.Trainer)  # type[Trainer]
    reveal_type(rw.pool.AsyncResult[int])  # type[AsyncResult[int]]
    reveal_type(pipeline.Stage)  # type[Stage]
    reveal_type(exchange.StallDetector)  # type[StallDetector]
    reveal_type(population.Uniform)  # type[Uniform]
    reveal_type(training.Trainer)  # type[Trainer]
    print(rw.Poool, pipeline.Stag)  # pyright: ignore[reportAttributeAccessIssue]
