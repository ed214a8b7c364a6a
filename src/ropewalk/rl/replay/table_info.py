"""`TableInfo`: facts about a table, for status, logs and error messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table at one moment.

    Attributes:
        name: name of the table.
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


__all__ = ["TableInfo"]
