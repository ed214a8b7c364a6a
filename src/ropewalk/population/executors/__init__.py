"""Where evaluations run: a pool of Ropewalk, another library's, or this process."""

from __future__ import annotations

from typing import Any

from ropewalk.pool.pool import Pool
from ropewalk.population.algorithm import Fitness
from ropewalk.population.executors.executor import EvaluationExecutor
from ropewalk.population.executors.ropewalk_pool import RopewalkPool
from ropewalk.population.executors.stdlib_pools import FuturesExecutor, MultiprocessingExecutor
from ropewalk.population.executors.this_process import ThisProcess


def ground_of(pool: Any, fitness: Fitness, seed: int, *, in_bulk: bool) -> EvaluationExecutor:
    """The ground for whatever was given as `pool`.

    Args:
        pool: what evaluations run on.
        fitness: what evaluators call.
        seed: of the run.
        in_bulk: whether nobody looks at outcomes before all of an ask are there.

    Raises:
        TypeError: it is nothing that runs tasks.
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
