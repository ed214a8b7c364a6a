"""`QueueLimiter` and `StackLimiter`: items are sampled once, and inserting waits while there are `size`."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.replay.limiters.limiter import Limiter, RateLimiter


@dataclass(frozen=True, slots=True)
class QueueLimiter(Limiter):
    """Bound a table of items that are sampled once, the oldest first. Use it with `max_times_sampled=1`.

    Args:
        size: items that may wait to be sampled; at least 1.
    """

    size: int

    def formula(self) -> RateLimiter:
        """Return the formula: at least 0 and at most `size` samples are owed."""
        return _bounded(self.size)


@dataclass(frozen=True, slots=True)
class StackLimiter(Limiter):
    """Bound a table of items that are sampled once, the newest first. Use it with `max_times_sampled=1`.

    Args:
        size: items that may wait to be sampled; at least 1.
    """

    size: int

    def formula(self) -> RateLimiter:
        """Return the formula: at least 0 and at most `size` samples are owed."""
        return _bounded(self.size)


def _bounded(size: int) -> RateLimiter:
    if size < 1:
        raise ValueError(f"a queue or stack of size {size} holds nothing; its size must be at least 1")
    return RateLimiter(1.0, 1, 0.0, float(size))


__all__ = ["QueueLimiter", "StackLimiter"]
