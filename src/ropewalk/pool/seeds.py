"""Random seeds of tasks: each depends on the map and the position in it, and on nothing else."""

from __future__ import annotations

import hashlib

from ropewalk.pool.worker import current_task


def task_seed() -> int:
    """Return a 64-bit number for the current task, independent of the number of workers and of retries.

    It depends on the `seed` of the map (by default the number of the map in its pool) and on the index of the task.
    Different tasks get independent numbers.

    Example:
        >>> import random
        >>> import ropewalk as rw
        >>> def draw(_):
        ...     return random.Random(rw.task_seed()).randint(0, 999)
        >>> with rw.Pool(2) as pool:
        ...     pool.map(draw, range(3), seed=7) == pool.map(draw, range(3), seed=7)
        True

    Returns:
        An integer from 0 to 2**64 - 1.

    Raises:
        RuntimeError: called outside of a task.
    """
    task = current_task()
    if task is None:
        raise RuntimeError("task_seed() can only be called inside a task of a pool")
    return derive(*task)


def derive(seed: int, index: int) -> int:
    """Return the seed of task `index` of a map with the seed `seed`."""
    data = (seed & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
