"""`ratio_table`: the replay table of an agent, with the limiter that says how often each item is learned from."""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.replay.limiters import RateLimiter
from ropewalk.rl.replay.selectors import Fifo, Prioritized, Uniform
from ropewalk.rl.replay.table import ReplayTable


def ratio_table(
    name: str,
    *,
    samples_per_insert: float,
    learning_starts: int,
    batch_size: int,
    items_per_round: int,
    max_size: int,
    priority_exponent: float | None = None,
    signature: Mapping[str, ArraySpec] | None = None,
    seed: int = 0,
) -> ReplayTable:
    """Return a table that keeps the newest items, each of which is sampled about `samples_per_insert` times.

    Args:
        name: of the table.
        samples_per_insert: see `ratio_limiter`, as the next three.
        learning_starts: items before the first sample.
        batch_size: items of a batch.
        items_per_round: items that all groups insert with one block each, at most.
        max_size: largest number of items; the oldest leave.
        priority_exponent: of prioritized sampling; None: items are sampled uniformly.
        signature: of the items.
        seed: of all draws.
    """
    return ReplayTable(
        name,
        sampler=Uniform() if priority_exponent is None else Prioritized(priority_exponent),
        remover=Fifo(),
        max_size=max_size,
        limiter=ratio_limiter(
            samples_per_insert, min_size=learning_starts, batch_size=batch_size, items_per_round=items_per_round
        ),
        signature=signature,
        seed=seed,
    )


def ratio_limiter(samples_per_insert: float, *, min_size: int, batch_size: int, items_per_round: int) -> RateLimiter:
    """Return the limiter of a table that is sampled `samples_per_insert` times for each item, in whole batches.

    The numbers of samples owed that it allows lie one round's samples and one batch below and above
    samples_per_insert * min_size. In lock-step less than a batch is owed above the lower bound after the updates of a
    round, so that the next round always fits in. Asynchronous actors may be one round ahead of the learner, or one
    behind it.

    Args:
        samples_per_insert: samples for each item.
        min_size: items before the first sample.
        batch_size: items of a batch.
        items_per_round: items that all groups insert with one block each, at most.
    """
    middle = samples_per_insert * min_size
    room = samples_per_insert * items_per_round + batch_size
    return RateLimiter(samples_per_insert, min_size, middle - room, middle + room)


__all__ = ["ratio_limiter", "ratio_table"]
