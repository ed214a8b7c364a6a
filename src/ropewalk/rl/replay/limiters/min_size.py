"""`MinSize`: sampling begins when a table has a number of items; nothing else is limited."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.replay.limiters.limiter import Limiter, RateLimiter


@dataclass(frozen=True, slots=True)
class MinSize(Limiter):
    """Let a table be sampled as soon as it has `min_size` items; inserting never waits.

    Args:
        min_size: number of items; at least 1.
    """

    min_size: int

    def formula(self) -> RateLimiter:
        """Return the formula without bounds on the samples that are owed."""
        return RateLimiter(1.0, self.min_size)


__all__ = ["MinSize"]
