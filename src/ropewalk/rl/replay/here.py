"""`TablesHere`: replay tables of this process, as inserters and samplers call them. Nothing waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ropewalk as rw
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables

LIFE_HERE = None
"""The life of tables that cannot be lost."""


class TablesHere:
    """Gives `ReplayTables` the methods of `ReplayServer` that inserters and samplers use.

    Where a limiter says that a call has to wait, it raises: no other thread changes the tables meanwhile.

    Args:
        tables: tables of this process.
    """

    def __init__(self, tables: ReplayTables) -> None:
        self._tables = tables

    def tables(self) -> tuple[ReplayTable, ...]:
        """Return the settings of the tables."""
        return self._tables.tables

    @rw.method
    def insert_many(self, insertions: Sequence[Insertion], acknowledged: int) -> list[bool]:
        """Insert all that the limiters allow.

        Raises:
            RuntimeError: a limiter does not allow one of them.
        """
        del acknowledged  # nothing gets lost here
        return [self._insert(insertion) for insertion in insertions]

    @rw.method
    def draw(
        self, table: str, batch_size: int, deadline_s: float | None = None, at_least: int = 1, pid: int = 0
    ) -> tuple[Batch, None]:
        """Sample as many items as the limiter allows.

        Raises:
            RuntimeError: it allows none.
        """
        del deadline_s, at_least, pid  # nobody inserts while this waits
        num = self._tables.can_sample(table, batch_size)
        if not num:
            raise RuntimeError(
                f"table {table!r} of this process cannot be sampled now, and nothing is inserted while this thread "
                f"waits: {self._tables.info()[table].sample_waits_for}"
            )
        return self._tables.sample(table, num), LIFE_HERE

    @rw.method
    def end_stream(self, run_id: str) -> None:
        """End a stream."""
        self._tables.end_stream(run_id)

    def _insert(self, insertion: Insertion) -> bool:
        if not self._tables.can_insert(insertion):
            infos = self._tables.info()
            why = [f"{name!r}: {infos[name].insert_waits_for}" for name in insertion.items]
            raise RuntimeError(
                "this insertion has to wait, and nothing is sampled while this thread waits; sample first, for which "
                f"`can_insert` tells: {'; '.join(why)}"
            )
        return self._tables.insert(insertion)


def callable_replay(replay: Any) -> Any:
    """Return replay as inserters and samplers call it: clients and servers themselves, tables with what they lack."""
    return TablesHere(replay) if isinstance(replay, ReplayTables) else replay


__all__ = ["LIFE_HERE", "TablesHere", "callable_replay"]
