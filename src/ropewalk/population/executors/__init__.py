"""Executors of evaluations: on a pool of Ropewalk, on the pool of another library, or in this process."""

from __future__ import annotations

from typing import Any

from ropewalk.pool.pool import Pool
from ropewalk.population.algorithm import Fitness
from ropewalk.population.executors.executor import EvaluationExecutor
from ropewalk.population.executors.ropewalk_pool import RopewalkPool
from ropewalk.population.executors.stdlib_pools import FuturesExecutor, MultiprocessingExecutor
from ropewalk.population.executors.this_process import ThisProcess


def executor_for(pool: Any, fitness: Fitness, seed: int, *, in_bulk: bool) -> EvaluationExecutor:
    """Return the executor for the object that was given as `pool`.

    Args:
        pool: a pool or an executor; None for this process.
        fitness: the function that evaluators call.
        seed: seed of the run.
        in_bulk: whether outcomes are needed only when all evaluations of an ask have ended.

    Raises:
        TypeError: `pool` cannot run tasks.
    """
    if pool is None:
        return ThisProcess(fitness, seed)
    if isinstance(pool, Pool):
        return RopewalkPool(pool, fitness, seed, in_bulk=in_bulk)
    if callable(getattr(pool, "submit", None)):
        return FuturesExecutor(pool, fitness, seed)
    if callable(getattr(pool, "apply_async", None)):
        return MultiprocessingExecutor(pool, fitness, seed)
    raise TypeError(
        f"pool must be a ropewalk.Pool, something with `apply_async` or `submit` like the pools of the standard "
        f"library, or None for this process, not {pool!r:.80}"
    )
