"""The pools that are measured, behind two verbs: `map` and `apply`.

An adapter adds nothing but a call; where an interface has no automatic chunks
(executors), it is given those that `multiprocessing.Pool` would have made.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol


class Contender(Protocol):
    """One pool, running."""

    pool: Any

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunksize: int | None = None) -> list[Any]: ...

    def apply(self, function: Callable[[Any], Any], argument: Any) -> Any: ...

    def close(self) -> None: ...


class WithPoolInterface:
    """multiprocessing.Pool and whatever looks like it."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunksize: int | None = None) -> list[Any]:
        return self.pool.map(function, items, chunksize)

    def apply(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return self.pool.apply(function, (argument,))

    def close(self) -> None:
        self.pool.terminate()
        if hasattr(self.pool, "join"):
            self.pool.join()


class WithExecutorInterface:
    """concurrent.futures and whatever looks like it."""

    def __init__(self, executor: Any, workers: int) -> None:
        self.pool = executor
        self.workers = workers

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunksize: int | None = None) -> list[Any]:
        chunksize = chunksize or -(-len(items) // (4 * self.workers))
        return list(self.pool.map(function, items, chunksize=chunksize))

    def apply(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return self.pool.submit(function, argument).result()

    def close(self) -> None:
        self.pool.shutdown()


Opener = Callable[[int], Contender]


def fork_pool() -> Opener:
    return lambda workers: WithPoolInterface(multiprocessing.get_context("fork").Pool(workers))


def fork_executor() -> Opener:
    context = multiprocessing.get_context("fork")
    return lambda workers: WithExecutorInterface(ProcessPoolExecutor(workers, mp_context=context), workers)


def bare_pool() -> Opener:
    pool = importlib.import_module("bare_pool").BarePool
    return lambda workers: WithPoolInterface(pool(workers))


def loky_executor() -> Opener:
    executor = importlib.import_module("loky").ProcessPoolExecutor
    return lambda workers: WithExecutorInterface(executor(workers), workers)


class WithRay(WithPoolInterface):
    """Ray's results are read-only arrays: whoever wants to write copies them."""

    def apply(self, function: Callable[[Any], Any], argument: Any) -> Any:
        result = super().apply(function, argument)
        return result.copy() if hasattr(result, "flags") and not result.flags.writeable else result


def ray_pool() -> Opener:
    ray = importlib.import_module("ray")
    pool = importlib.import_module("ray.util.multiprocessing").Pool

    def open_pool(workers: int) -> Contender:
        if not ray.is_initialized():
            ray.init(num_cpus=workers, log_to_driver=False)
        return WithRay(pool(workers))

    return open_pool


def subject_pool() -> Opener:
    # The attribute is looked up when the pool is made: where a module loads it lazily, that is part of the start.
    module = importlib.import_module(os.environ.get("BENCHMARK_POOL", "ropewalk"))
    return lambda workers: WithPoolInterface(module.Pool(workers))


# In the order in which they are opened: forking first, while this process has no threads.
LIBRARIES: dict[str, Callable[[], Opener]] = {
    "multiprocessing": fork_pool,
    "bare": bare_pool,
    "futures": fork_executor,
    "loky": loky_executor,
    "ray": ray_pool,
    "ropewalk": subject_pool,
}


@functools.cache
def opener(name: str) -> Opener | None:
    """How to open a pool of this library; None where it is not installed."""
    try:
        return LIBRARIES[name]()
    except ModuleNotFoundError as missing:
        # A missing module of the library itself is a fault, and stays one.
        if (missing.name or "").split(".")[0] in ("loky", "ray"):
            return None
        raise


@contextmanager
def opened(
    names: Sequence[str], workers: int, warm_up: Callable[[Contender], object]
) -> Generator[dict[str, Contender]]:
    """All named contenders that are installed, started and warm."""
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for name in LIBRARIES:
            make = opener(name) if name in names else None
            if make is not None:
                running[name] = make(workers)
                stack.callback(running[name].close)
                warm_up(running[name])
        yield running
