"""`ReplaySnapshot`: replay at one moment, whose rows are read piece by piece while replay goes on.

Rows never change, so they only have to be kept: the snapshot is one more holder of each. Taking it copies the facts of
the items and no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.slab import Slots


class ReplaySnapshot:
    """What `ReplayTables.snapshot` returns. Its methods belong to the same thread as those of the tables.

    Attributes:
        state: all entries of `ReplayTables.state_dict` but the rows.

    Args:
        store: has the rows.
    """

    def __init__(self, store: RowStore) -> None:
        self.state: dict[str, Array] = {}
        self._columns = dict(store.columns)
        self._held: dict[str, Slots] = {name: column.held() for name, column in self._columns.items()}
        for name, slots in self._held.items():
            self._columns[name].hold(slots)

    def __enter__(self) -> ReplaySnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_rows(self) -> Mapping[str, int]:
        """How many rows there are, by column; the entry of a column in the state has the name "rows/<column>"."""
        return {name: len(slots) for name, slots in self._held.items()}

    def saved_slots(self) -> dict[str, Slots]:
        """Return, by column and slot, the number of the row in the snapshot; -1: it is not in it."""
        found: dict[str, Slots] = {}
        for name, slots in self._held.items():
            numbers = found[name] = np.full(self._columns[name].capacity, -1)
            numbers[slots] = np.arange(len(slots))
        return found

    def rows(self, column: str, first: int, last: int) -> Array:
        """Return a copy of rows `first` to `last` of a column, without `last`."""
        slots = self._held[column][first:last]
        out = np.empty((len(slots), *self._columns[column].shape), self._columns[column].dtype)
        self._columns[column].read(slots, out)
        return out

    def close(self) -> None:
        """Let the rows go; those that nothing else needs any more are freed. May be called twice."""
        for name, slots in self._held.items():
            self._columns[name].release(slots)
        self._held = {}


__all__ = ["ReplaySnapshot"]
