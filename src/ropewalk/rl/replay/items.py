"""`ItemTable`: the items of one table, one array per property."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.insertion import NewItems
from ropewalk.rl.replay.item_columns import ItemColumn
from ropewalk.rl.replay.limiters.limiter import TableCounts
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.row_uses import RowUses
from ropewalk.rl.replay.selectors.selector import Floats, Keys
from ropewalk.rl.replay.slab import Slots
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.seeds import generator

POSITION_BITS = 28
"""A key has the position of its item in the lowest bits, and above them the number of its insertion."""
_POSITION = (1 << POSITION_BITS) - 1
_NUMBER = (1 << (63 - POSITION_BITS)) - 1


@dataclass(frozen=True, slots=True)
class FoundItems:
    """Items that are about to be added.

    Attributes:
        slots: by column of the table's samples: the stored column, and slots of shape (items,) or (items, L).
        priorities: of each item; None: the largest so far.
        run_id: of the stream.
        version: of the weights.
        num_items: how many.
    """

    slots: Mapping[str, tuple[str, Slots]]
    priorities: Floats | None
    run_id: str
    version: int
    num_items: int


class ItemTable:
    """Items at positions, which are used again. Not thread-safe.

    Args:
        settings: of the table.
        store: has the rows.
    """

    def __init__(self, settings: ReplayTable, store: RowStore) -> None:
        self.settings = settings
        self.limiter = settings.limiter
        self.formula = settings.limiter.formula()
        self.counts = TableCounts()
        self.columns: dict[str, ItemColumn] = {}
        self.uses: dict[str, RowUses] = {}
        self._store = store
        self._sampler = settings.sampler.make(self._generator("sampler"), settings.max_size)
        self._remover = settings.remover.make(self._generator("remover"), settings.max_size)
        self._keys = np.empty(0, np.int64)
        self._priorities = np.empty(0, np.float64)
        self._times_sampled = np.empty(0, np.int64)
        self._rests = np.empty(0, np.int64)
        self._versions = np.empty(0, np.int64)
        self._inserted = np.empty(0, np.int64)
        self._runs = np.empty(0, np.int64)
        self._run_ids: list[str] = []
        self._free = np.empty(0, np.int64)
        self._num_free = 0
        self._num_touched = 0
        self._largest_priority = 0.0

    @property
    def num_bytes(self) -> int:
        """Size of the rows of the items."""
        return sum(uses.num_rows * self._store.columns[name].row_bytes for name, uses in self.uses.items())

    def check_columns(self, items: NewItems) -> None:
        """Check that new items have the columns of those before them.

        Raises:
            ValueError: they have other columns, or another number of axes in one.
        """
        if self.columns and items.columns.keys() != self.columns.keys():
            raise ValueError(
                f"items for table {self.settings.name!r} have columns {sorted(items.columns)}; the first ones had "
                f"{sorted(self.columns)}"
            )
        for name, column in self.columns.items():
            rows = items.columns[name]
            if (rows.column, rows.rows.ndim) != (column.stored, 1 + len(column.shape)):
                raise ValueError(
                    f"items for table {self.settings.name!r} have {rows.rows.ndim - 1} axes of rows of "
                    f"{rows.column!r} in column {name!r}; the first ones had {len(column.shape)} of {column.stored!r}"
                )

    def add(self, items: FoundItems) -> None:
        """Add items, then remove others while there are too many."""
        positions = self._new_positions(items.num_items)
        priorities = items.priorities
        if priorities is None:
            priorities = np.full(items.num_items, self._largest_priority or 1.0)
        numbers = np.arange(self.counts.inserts, self.counts.inserts + items.num_items)
        self._keys[positions] = (numbers & _NUMBER) << POSITION_BITS | positions
        self._priorities[positions] = priorities
        self._times_sampled[positions] = 0
        self._rests[positions] = self.settings.max_times_sampled
        self._versions[positions] = items.version
        self._inserted[positions] = numbers
        self._runs[positions] = self._run_index(items.run_id)
        self._largest_priority = max(self._largest_priority, float(priorities.max()))
        for name, (stored, slots) in items.slots.items():
            if name not in self.columns:
                self.columns[name] = ItemColumn(stored, slots.shape[1:])
            self.columns[name].write(positions, slots, len(self._keys))
        for stored, slots in self._slots_by_stored(positions).items():
            uses = self.uses.setdefault(stored, RowUses())
            uses.reserve(self._store.columns[stored].capacity)
            self._store.columns[stored].hold(uses.add(slots))
        self._sampler.insert(positions, priorities)
        self._remover.insert(positions, priorities)
        self.counts.inserts += items.num_items
        self._remove_surplus()

    def sample(self, num: int) -> Batch:
        """Sample items; the limiter was asked before.

        Raises:
            ValueError: the table has too few items that may be sampled.
        """
        chosen, probabilities, table_size, finished = self._choose(num)
        columns = {name: column.gather(self._store, chosen) for name, column in self.columns.items()}
        np.add.at(self._times_sampled, chosen, 1)
        info = SampleInfo(
            self._keys[chosen],
            probabilities,
            self._priorities[chosen],
            self._times_sampled[chosen],
            self._versions[chosen],
            self._inserted[chosen],
            table_size,
            tuple(map(self._run_ids.__getitem__, self._runs[chosen].tolist())),
        )
        self.counts.samples += num
        self._free_items(finished)
        return Batch(columns, info)

    def update_priorities(self, keys: Keys, priorities: Floats) -> int:
        """Change priorities of those items that are still there; the last one counts where a key is repeated."""
        positions, present = self._find(keys)
        self._priorities[positions] = priorities[present]
        if len(positions):
            self._largest_priority = max(self._largest_priority, float(priorities[present].max()))
        positions = np.unique(positions)
        self._sampler.update(positions, self._priorities[positions])
        self._remover.update(positions, self._priorities[positions])
        return len(positions)

    def delete(self, keys: Keys) -> int:
        """Delete those of the items that are still there."""
        positions = np.unique(self._find(keys)[0])
        self._delete(positions)
        return len(positions)

    def reset(self) -> None:
        """Delete all items, and set all counts to 0."""
        self._delete(np.flatnonzero(self._keys[: self._num_touched] >= 0))
        self.counts = TableCounts()
        self._largest_priority = 0.0

    def num_samples(self, at_most: int) -> int:
        """Return how many items may be sampled now, in whatever order they leave the table."""
        num = self.formula.num_samples(self.counts, at_most)
        if not self.settings.max_times_sampled or num == 0:
            return num
        # Sampling ends when fewer than min_size items are there: at the latest after so many have left.
        leaving = self.counts.size - self.formula.min_size + 1
        if leaving >= num:
            return num
        rests = self._rests[np.flatnonzero(self._keys[: self._num_touched] >= 0)]
        return min(num, int(np.partition(rests, leaving - 1)[:leaving].sum()))

    def _generator(self, purpose: str) -> np.random.Generator:
        return generator(self.settings.seed, "replay", self.settings.name, purpose)

    def _choose(self, num: int) -> tuple[Keys, Floats, int, Keys]:
        size = self.counts.size
        if not self.settings.max_times_sampled:
            return *self._sampler.select(num), size, np.empty(0, np.int64)
        chosen: list[Keys] = []
        probabilities: list[Floats] = []
        finished: list[Keys] = []
        while num:
            keys, probability = self._sampler.select(num, self._rests)
            np.subtract.at(self._rests, keys, 1)
            done = np.unique(keys[self._rests[keys] == 0])
            self._sampler.delete(done)
            self._remover.delete(done)
            chosen.append(keys)
            probabilities.append(probability)
            finished.append(done)
            num -= len(keys)
        return np.concatenate(chosen), np.concatenate(probabilities), size, np.concatenate(finished)

    def _remove_surplus(self) -> None:
        while self.counts.size > self.settings.max_size:
            self._remove(self.counts.size - self.settings.max_size)
        if self.settings.max_bytes is None:
            return
        item_bytes = sum(
            math.prod(column.shape) * self._store.columns[column.stored].row_bytes for column in self.columns.values()
        )
        while (excess := self.num_bytes - self.settings.max_bytes) > 0 and self.counts.size > 1:
            # No item frees more than all of its rows.
            self._remove(min(max(1, excess // max(item_bytes, 1)), self.counts.size - 1))

    def _remove(self, num: int) -> None:
        once = np.broadcast_to(np.int64(1), len(self._keys))
        self._delete(self._remover.select(num, once)[0])

    def _delete(self, positions: Keys) -> None:
        self._sampler.delete(positions)
        self._remover.delete(positions)
        self._free_items(positions)

    def _free_items(self, positions: Keys) -> None:
        if not len(positions):
            return
        for stored, slots in self._slots_by_stored(positions).items():
            self._store.columns[stored].release(self.uses[stored].remove(slots))
        self._keys[positions] = -1
        self._free[self._num_free : self._num_free + len(positions)] = positions
        self._num_free += len(positions)
        self.counts.deletes += len(positions)

    def _slots_by_stored(self, positions: Keys) -> dict[str, Slots]:
        found: dict[str, list[Slots]] = {}
        for column in self.columns.values():
            found.setdefault(column.stored, []).append(column.slots_of(positions))
        return {stored: slots[0] if len(slots) == 1 else np.concatenate(slots) for stored, slots in found.items()}

    def _find(self, keys: Keys) -> tuple[Keys, NDArray[np.bool_]]:
        positions = keys & _POSITION
        present = (keys >= 0) & (positions < len(self._keys))
        present[present] = self._keys[positions[present]] == keys[present]
        return positions[present], present

    def _new_positions(self, num: int) -> Keys:
        again = min(num, self._num_free)
        self._num_free -= again
        positions = np.concatenate(
            (
                self._free[self._num_free : self._num_free + again],
                np.arange(self._num_touched, self._num_touched + num - again),
            )
        )
        self._num_touched += num - again
        self._grow(self._num_touched)
        return positions

    def _grow(self, size: int) -> None:
        self._keys = grown(self._keys, size, -1)
        self._priorities = grown(self._priorities, size)
        self._times_sampled = grown(self._times_sampled, size)
        self._rests = grown(self._rests, size)
        self._versions = grown(self._versions, size)
        self._inserted = grown(self._inserted, size)
        self._runs = grown(self._runs, size)
        self._free = grown(self._free, size)

    def _run_index(self, run_id: str) -> int:
        if not self._run_ids or self._run_ids[-1] != run_id:
            if run_id in self._run_ids:
                return self._run_ids.index(run_id)
            self._run_ids.append(run_id)
        return len(self._run_ids) - 1


__all__ = ["POSITION_BITS", "FoundItems", "ItemTable"]
