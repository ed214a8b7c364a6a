"""`ReplaySnapshot`: replay at one moment, whose rows are read piece by piece while replay goes on.

Rows never change, so they only have to be kept: while a snapshot is open, none of its rows is freed. Taking it copies
the facts of the items, and no row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import TracebackType

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.items import FrozenItems
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.slab import Slots
from ropewalk.rl.replay.streams import Streams


class ReplaySnapshot:
    """What `ReplayTables.snapshot` returns.

    `rows` and `close` must not run at the same time as a method of the tables. `state_dict` may: it works on copies.

    Args:
        store: has the rows.
        streams: streams of the tables.
        items: the items, by table.
        counts: counts and limiters, as they are saved.
    """

    def __init__(
        self, store: RowStore, streams: Streams, items: Mapping[str, FrozenItems], counts: Mapping[str, Array]
    ) -> None:
        self._columns = dict(store.columns)
        self._holders = {name: column.holders() for name, column in self._columns.items()}
        self._streams = streams.copied()
        self._items = items
        self._counts = counts
        self._open = True
        for column in self._columns.values():
            column.pin()

    def __enter__(self) -> ReplaySnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_rows(self) -> dict[str, int]:
        """How many rows there are, by column; the entry of a column in the state has the name "rows/<column>"."""
        return {name: len(slots) for name, slots in self._held.items()}

    def state_dict(self) -> dict[str, Array]:
        """Return all entries of `ReplayTables.state_dict` but the rows."""
        saved_slots: dict[str, Slots] = {}
        for name, slots in self._held.items():
            numbers = saved_slots[name] = np.full(len(self._holders[name]), -1)
            numbers[slots] = np.arange(len(slots))
        state = {**self._counts}
        state |= {f"streams/{name}": array for name, array in self._streams.state_dict(saved_slots).items()}
        for table, items in self._items.items():
            state |= {f"tables/{table}/{name}": array for name, array in items.state_dict(saved_slots).items()}
        return state

    def rows(self, column: str, first: int, last: int) -> Array:
        """Return a copy of rows `first` to `last` of a column, without `last`."""
        if not self._open:
            raise ValueError(f"rows of column {column!r} were asked of a snapshot that is closed; read them before")
        of, slots = self._columns[column], self._held[column][first:last]
        out = np.empty((len(slots), *of.shape), of.dtype)
        of.read(slots, out)
        return out

    def close(self) -> None:
        """Let the rows go; those that nothing else needs any more are freed. May be called twice."""
        for column in self._columns.values() if self._open else ():
            column.unpin()
        self._open = False

    @functools.cached_property
    def _held(self) -> dict[str, Slots]:
        return {name: np.flatnonzero(holders) for name, holders in self._holders.items()}


__all__ = ["ReplaySnapshot"]
