"""The types that the public interface keeps. Never run: `make check` lets pyright and pyrefly read it.

Each mistake is marked as one for both checkers, and a mark where a checker sees no mistake is an error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, assert_type

import numpy as np

import ropewalk as rw
from ropewalk import rl
from ropewalk.managers import DictProxy, ListProxy, SyncManager, ValueProxy
from ropewalk.pool import AsyncResult, IMapIterator, MapResult
from ropewalk.population import SNES, FailurePolicy, RunResult, SteadyMode, evaluate


def label(x: int) -> str:
    return str(x)


def area(width: float, height: float = 1.0) -> float:
    return width * height


def fitness(x: Any) -> float:
    return float(x.sum())


def calls_of_a_pool(pool: rw.Pool) -> None:
    assert_type(pool.map(label, [1, 2]), list[str])
    assert_type(pool.map(lambda x: (x, label(x)), range(3)), list[tuple[int, str]])
    assert_type(pool.map_async(label, range(3)), MapResult[str])
    assert_type(pool.map_async(label, range(3)).get(), list[str])
    assert_type(pool.starmap(area, [(1.0, 2.0), (3.0,)]), list[float])
    assert_type(pool.starmap_async(area, [(1.0, 2.0)]).get(), list[float])
    assert_type(pool.imap(label, range(3)), IMapIterator[str])
    assert_type(next(pool.imap_unordered(label, range(3))), str)
    assert_type(pool.apply(area, (1.0,), {"height": 2.0}), float)
    assert_type(pool.apply_async(label, (1,)), AsyncResult[str])
    assert_type(pool.apply_async(label, (1,)).get(timeout=1), str)
    assert_type(pool.map(fitness, [pool.put(np.zeros(3))]), list[float])
    pool.map(label, ["a"])  # pyright: ignore[reportArgumentType]  # pyrefly: ignore[bad-argument-type]


async def awaited(pool: rw.Pool) -> None:
    assert_type(await pool.apply_async(label, (1,)), str)
    assert_type(await pool.map_async(label, [1]), list[str])


def calls_of_an_executor(executor: rw.Executor) -> None:
    assert_type(executor.submit(label, 1), Future[str])
    assert_type(executor.submit(area, 1.0, height=2.0).result(), float)
    assert_type(executor.map(label, range(3)), Iterator[str])
    executor.submit(label, "a")  # pyright: ignore[reportArgumentType]  # pyrefly: ignore[bad-argument-type]
    executor.submit(area, 1.0, depth=2.0)  # pyright: ignore[reportCallIssue]  # pyrefly: ignore[unexpected-keyword]


def processes() -> None:
    process = rw.Process(target=label, args=(1,))
    assert_type(process, rw.Process)
    assert_type(process.exitcode, int | None)
    with rw.Pool(2) as pool, rw.Executor(2) as executor:
        assert_type(pool, rw.Pool)
        assert_type(executor, rw.Executor)
    assert_type(rw.get_context(engine="local").Pool(2), rw.Pool)


def objects_of_a_manager(manager: SyncManager) -> None:
    assert_type(rw.Manager(), SyncManager)
    numbers = manager.list([1, 2])
    assert_type(numbers, ListProxy)
    assert_type(len(numbers), int)
    numbers.append.future(3)  # proxies may be called without waiting
    assert_type(manager.dict(a=1), DictProxy)
    assert_type(manager.Value("i", 0), ValueProxy)
    manager.lists()  # pyright: ignore[reportAttributeAccessIssue]  # pyrefly: ignore[missing-attribute]


def names() -> None:
    rw.population.Evaluate  # pyright: ignore  # pyrefly: ignore[missing-attribute]  # noqa: B018


def runs_of_population_methods(pool: rw.Pool) -> None:
    run = evaluate(SNES(np.zeros(3)), fitness, pool, generations=2)
    assert_type(run, RunResult[SNES])
    assert_type(run.algorithm.widths.size, int)
    assert_type(run.best_fitness, float)
    assert_type(evaluate(object(), fitness, generations=2), RunResult[Any])
    assert_type(
        evaluate(SNES(np.zeros(3)), fitness, mode=SteadyMode(2), failures=FailurePolicy(nan="drop")), RunResult[SNES]
    )
    evaluate(SNES(np.zeros(3)), fitness, mode="forever")  # pyright: ignore  # pyrefly: ignore[no-matching-overload]


def loggers(label: str, row: Mapping[str, float | int | str | None]) -> None:
    print(label, row["steps"])


def experiments() -> None:
    experiment = rl.Experiment(rl.DQN(), rl.Gymnasium("CartPole-v1"), rl.MLP((64,)), steps=1000)
    result = experiment.run(actors=2, mode="lockstep", log=loggers)
    assert_type(result, rl.ExperimentResult)
    assert_type(result.score, float | None)
    assert_type(result.policy(), rl.Policy)
    assert_type(result.evaluate(episodes=10), tuple[float, ...])
    assert_type(rl.load_policy("policy.rl"), rl.Policy)
    experiment.run(mode="parallel")  # pyright: ignore[reportArgumentType]  # pyrefly: ignore[bad-argument-type]
    rl.Experiment(rl.PPO, rl.Gymnasium("CartPole-v1"))  # pyright: ignore  # pyrefly: ignore[bad-argument-type]
    rl.DQN(batch=32)  # pyright: ignore[reportCallIssue]  # pyrefly: ignore[unexpected-keyword]


def recorded(dataset: rl.OfflineDataset) -> None:
    assert_type(rl.train_offline(rl.BC(), dataset, updates=10), rl.OfflineResult)


def sampled(replay: rl.ReplayServer) -> rl.Batch:
    """Inside a node: a client of replay."""
    assert_type(replay.sample.future("table", 32), Future[rl.Batch])
    return replay.sample("table", 32)


class Counter:
    @rw.method
    def add(self, number: int) -> int:
        return number

    @rw.method
    def words(self) -> Iterator[str]:
        yield "word"


def clients(counter: Counter) -> None:
    """Inside a node: a parameter annotated with the class of a service is a client of it."""
    assert_type(counter.add(1), int)
    assert_type(counter.add.future(1), Future[int])
    assert_type(counter.add.future(1).result(), int)
    assert_type(counter.words(), Iterator[str])
    counter.add.future("one")  # pyright: ignore[reportArgumentType]  # pyrefly: ignore[bad-argument-type]


def programs() -> None:
    program = rw.Program("typed")
    handle = program.add(rw.Service(Counter))
    assert_type(handle, rw.Handle[Counter])
    replay = program.add(
        rl.Replay([rl.ReplayTable("table", sampler=rl.Uniform(), remover=rl.Fifo(), max_size=9, limiter=rl.MinSize(1))])
    )
    assert_type(replay, rw.Handle[rl.ReplayServer])
    assert_type(program.add(rw.Worker(clients, handle), replicas=2), rw.Handle[Any])
