"""Insertions and tables for tests of replay services."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.limiters import Limiter, MinSize
from ropewalk.rl.replay.selectors.ordered import Fifo
from ropewalk.rl.replay.table import ReplayTable


def queue(size: int, name: str = "queue") -> ReplayTable:
    return ReplayTable.queue(name, size)


def fifo(max_size: int = 1000, name: str = "fifo", limiter: Limiter | None = None) -> ReplayTable:
    """A table that is sampled from without end, the oldest item first."""
    return ReplayTable(name, sampler=Fifo(), remover=Fifo(), max_size=max_size, limiter=limiter or MinSize(1))


def insertion(
    number: int, *, run_id: str = "0#0", items: int = 1, tables: Sequence[str] = ("queue",), size: int = 1
) -> Insertion:
    """Rows of which each has the value number * 1000 + its index, as items of some tables."""
    rows: Array = np.repeat(number * 1000 + np.arange(items, dtype=np.float64), size).reshape(items, size)
    named = RowsOf("value", np.arange(number * items, (number + 1) * items, dtype=np.int64))
    return Insertion(run_id, number, {"value": rows}, {table: NewItems({"value": named}) for table in tables})
