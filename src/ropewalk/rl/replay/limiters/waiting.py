"""Why inserting into a table or sampling from it waits, in words."""

from __future__ import annotations

from ropewalk.rl.replay.limiters.limiter import RateLimiter, TableCounts


def why_insert_waits(limiter: RateLimiter, counts: TableCounts, num_items: int = 1) -> str:
    """Say in words why `num_items` items may not be inserted at once; empty: they may."""
    if limiter.admits(counts, num_items):
        return ""
    owed = limiter.owed(counts) + num_items * limiter.samples_per_insert
    return (
        f"{counts.inserts} items were inserted and {counts.samples} sampled; {_items(num_items)} more would make "
        f"{owed:g} samples owed, and at most max_diff={limiter.max_diff:g} may be"
    )


def why_sample_waits(limiter: RateLimiter, counts: TableCounts, num_items: int = 1) -> str:
    """Say in words why `num_items` items may not be sampled; empty: they may."""
    if limiter.may_sample(counts, num_items):
        return ""
    if counts.size < limiter.min_size:
        return f"the table has {counts.size} of min_size={limiter.min_size} items"
    return (
        f"{counts.inserts} items were inserted and {counts.samples} sampled; {_items(num_items)} more would leave "
        f"{limiter.owed(counts) - num_items:g} samples owed, and at least min_diff={limiter.min_diff:g} must be"
    )


def _items(num: int) -> str:
    return "1 item" if num == 1 else f"{num} items"


__all__ = ["why_insert_waits", "why_sample_waits"]
