"""`ratio_limiter`: how often agents with replay learn from each item, in lock-step and in asynchronous runs."""

from __future__ import annotations

from ropewalk.rl.replay.limiters import RateLimiter


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


__all__ = ["ratio_limiter"]
