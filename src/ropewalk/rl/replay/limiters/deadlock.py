"""Whether inserters and samplers of a replay server wait for each other, and with which counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.rl.replay.limiters.limiter import RateLimiter, TableCounts
from ropewalk.rl.replay.limiters.waiting import why_insert_waits, why_sample_waits


@dataclass(frozen=True, slots=True)
class LimitedTable:
    """A table as its limiter sees it.

    Attributes:
        limiter: limiter of the table.
        counts: counts of the table.
    """

    limiter: RateLimiter
    counts: TableCounts


def explain_deadlock(
    tables: Mapping[str, LimitedTable], inserting: Sequence[Mapping[str, int]], sampling: Mapping[str, int]
) -> str:
    """Say why nothing that waits can ever go on, if that is so.

    Args:
        tables: the tables, by name.
        inserting: the insertions that wait: for each one, the number of items by table.
        sampling: for each table that samplers wait for, the smallest number of items that one of them needs at once.

    Returns:
        For each side, which tables it waits for and with which counts; empty: something may go on, or nothing waits on
        one of the sides.
    """
    if not inserting or not sampling:
        return ""
    samplers = {
        name: why_sample_waits(tables[name].limiter, tables[name].counts, num) for name, num in sampling.items()
    }
    inserters: dict[str, str] = {}
    for items in inserting:
        why = {name: why_insert_waits(tables[name].limiter, tables[name].counts, num) for name, num in items.items()}
        waiting = {name: words for name, words in why.items() if words}
        if not waiting:
            return ""
        inserters |= waiting
    if not all(samplers.values()):
        return ""
    lines = [
        *(f"    inserting waits for table {name!r}: {words}" for name, words in sorted(inserters.items())),
        *(f"    sampling waits for table {name!r}: {words}" for name, words in sorted(samplers.items())),
    ]
    return "\n".join(
        [
            "inserters and samplers wait for each other, and nothing can go on:",
            *lines,
            "sample from every table that is inserted into, in batches that its limiter allows, or change a limiter",
        ]
    )


__all__ = ["LimitedTable", "explain_deadlock"]
