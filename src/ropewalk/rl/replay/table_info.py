"""`TableInfo`: facts about a table, for status, logs and error messages."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.replay.limiters.limiter import RateLimiter, TableCounts


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table at one moment.

    Attributes:
        name: of the table.
        size: number of items.
        max_size: largest number of items.
        num_bytes: size of the rows of its items.
        inserts: items that came in since the table was made or reset.
        samples: items that were sampled.
        deletes: items that left.
        insert_waits_for: why one more item may not be inserted now, in words; empty: it may.
        sample_waits_for: why no item may be sampled now, in words; empty: one may.
    """

    name: str
    size: int
    max_size: int
    num_bytes: int
    inserts: int
    samples: int
    deletes: int
    insert_waits_for: str
    sample_waits_for: str


def why_insert_waits(limiter: RateLimiter, counts: TableCounts, num_items: int = 1) -> str:
    """Say in words why so many items may not be inserted; empty: they may."""
    if limiter.may_insert(counts, num_items):
        return ""
    owed = limiter.owed(counts) + num_items * limiter.samples_per_insert
    return (
        f"{counts.inserts} items were inserted and {counts.samples} sampled; {_items(num_items)} more would make "
        f"{owed:g} samples owed, and at most max_diff={limiter.max_diff:g} may be"
    )


def why_sample_waits(limiter: RateLimiter, counts: TableCounts, num_items: int = 1) -> str:
    """Say in words why so many items may not be sampled; empty: they may."""
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


__all__ = ["TableInfo", "why_insert_waits", "why_sample_waits"]
