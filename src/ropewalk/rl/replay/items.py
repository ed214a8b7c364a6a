"""`ItemTable`: the items of one table, its selectors, and the counts that its limiter asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.replay.bundles import unbundled
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.insertion import NewItems
from ropewalk.rl.replay.item_columns import Allocate, ItemColumn
from ropewalk.rl.replay.item_facts import ItemFacts
from ropewalk.rl.replay.limiters.limiter import TableCounts
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.row_uses import RowUses
from ropewalk.rl.replay.selectors.selector import Floats, Keys, SelectorState
from ropewalk.rl.replay.slab import Slots
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.seeds import generator


@dataclass(frozen=True, slots=True)
class FoundItems:
    """Items that are about to be added, with the slots of their rows.

    Attributes:
        slots: by column of the table's samples: the stored column, and slots of shape (items,) or (items, L).
        priorities: priorities of each item; None: the largest so far.
        run_id: run id of the stream.
        version: version of the weights.
        num_items: how many.
    """

    slots: Mapping[str, tuple[str, Slots]]
    priorities: Floats | None
    run_id: str
    version: int
    num_items: int


@dataclass(frozen=True, slots=True)
class FrozenItems:
    """Copies of what a table has, to be saved. Made in little time; what takes more is left to `state_dict`.

    Attributes:
        facts: facts of the items.
        columns: columns of the table's samples.
        selectors: what they save.
        largest_priority: so far.
        num_inserted: number of items that ever came in.
    """

    facts: ItemFacts
    columns: Mapping[str, ItemColumn]
    selectors: Mapping[str, Array]
    largest_priority: float
    num_inserted: int

    def state_dict(self, saved_slots: Mapping[str, Slots]) -> dict[str, Array]:
        """Return everything as arrays.

        Args:
            saved_slots: by stored column and slot, the number under which the row is saved.
        """
        positions = self.facts.in_order()
        state = {f"items/{name}": array for name, array in self.facts.state_dict().items()}
        for name, column in self.columns.items():
            state[f"columns/{name}"] = column.saved(positions, saved_slots[column.stored])
            state[f"stored/{name}"] = np.array(column.stored)
        numbers = {"largest_priority": np.array(self.largest_priority), "num_inserted": np.array(self.num_inserted)}
        return {**state, **self.selectors, **numbers}


class ItemTable:
    """Items of one table. Not thread-safe.

    Attributes:
        settings: settings of the table.
        limiter: as it is now.
        formula: formula of the limiter.
        counts: counts of items.

    Args:
        settings: settings of the table.
        store: has the rows.
    """

    def __init__(self, settings: ReplayTable, store: RowStore) -> None:
        self.settings = settings
        self.limiter = settings.limiter
        self.formula = settings.limiter.formula()
        self.counts = TableCounts()
        self._store = store
        self._facts = ItemFacts()
        self._columns: dict[str, ItemColumn] = {}
        self._uses: dict[str, RowUses] = {}
        self._sampler = settings.sampler.make(self._generator("sampler"), settings.max_size)
        self._remover = settings.remover.make(self._generator("remover"), settings.max_size)
        # By position, how many times an item may still be sampled, if that is limited.
        self._rests = np.empty(0, np.int64)
        self._once = np.empty(0, np.int64)
        self._largest_priority = 0.0
        self._num_inserted = 0
        """Items that ever came in. `reset` does not set it to 0: keys of items that left would be those of new ones."""

    @property
    def num_bytes(self) -> int:
        """Size of the rows of the items; a row that several of them have counts once."""
        return sum(uses.num_rows * self._store.columns[name].row_bytes for name, uses in self._uses.items())

    @property
    def has_other_columns(self) -> bool:
        """Whether its items have columns that are no bundles: of an older checkpoint, or as its signature says."""
        return self.settings.signature is not None or any(
            self._store.columns[column.stored].dtype.names is None for column in self._columns.values()
        )

    def begin_life(self, life: int) -> None:
        """See `ReplayTables.begin_life`."""
        self._facts.life = life

    def check_columns(self, items: NewItems) -> None:
        """Check that new items have the columns of those before them.

        Raises:
            ValueError: they have other columns, or another number of axes in one.
        """
        if self._columns and items.columns.keys() != self._columns.keys():
            raise ValueError(
                f"items for table {self.settings.name!r} have columns {sorted(items.columns)}; the first ones had "
                f"{sorted(self._columns)}"
            )
        for name, column in self._columns.items():
            rows = items.columns[name]
            if (rows.column, rows.rows.ndim) != (column.stored, 1 + len(column.shape)):
                raise ValueError(
                    f"items for table {self.settings.name!r} have {rows.rows.ndim - 1} axes of rows of "
                    f"{rows.column!r} in column {name!r}; the first ones had {len(column.shape)} of {column.stored!r}"
                )

    def reserve(self, num_items: int) -> None:
        """Make room for `num_items` more items."""
        self._facts.reserve(num_items)
        if self.settings.max_times_sampled:
            self._rests = grown(self._rests, self._facts.capacity)

    def add(self, items: FoundItems) -> None:
        """Add items, for which there is room, then remove others while there are too many."""
        priorities = items.priorities
        if priorities is None:
            priorities = np.full(items.num_items, self._largest_priority or 1.0)
        self._largest_priority = max(self._largest_priority, float(priorities.max()))
        positions = self._facts.add(self._num_inserted, priorities, items.version, items.run_id)
        self._num_inserted += items.num_items
        if self.settings.max_times_sampled:
            self._rests[positions] = self.settings.max_times_sampled
        for name, (stored, slots) in items.slots.items():
            if name not in self._columns:
                self._columns[name] = ItemColumn(stored, slots.shape[1:])
            self._columns[name].write(positions, slots, self._facts.capacity)
        self._use_rows(positions)
        self._sampler.insert(positions, priorities)
        self._remover.insert(positions, priorities)
        self.counts.inserts += items.num_items
        self._remove_surplus()

    def num_samples(self, at_most: int) -> int:
        """Return how many items may be sampled now, in whatever order they leave the table."""
        num = self.formula.num_samples(self.counts, at_most)
        if not self.settings.max_times_sampled or num == 0:
            return num
        # Sampling ends when fewer than min_size items are there: at the earliest after `leaving` have left.
        leaving = self.counts.size - self.formula.min_size + 1
        if leaving >= num:
            return num
        rests = self._rests[self._facts.present()]
        return min(num, int(np.partition(rests, leaving - 1)[:leaving].sum()))

    def sample(self, num: int, allocate: Allocate = np.empty) -> Batch:
        """Sample items; `num_samples` allows as many."""
        facts, table_size = self._facts, self.counts.size
        positions, probabilities, finished = self._choose(num)
        columns = {name: column.gather(self._store, positions, allocate) for name, column in self._columns.items()}
        np.add.at(facts.times_sampled, positions, 1)
        info = SampleInfo(
            facts.keys[positions],
            probabilities,
            facts.priorities[positions],
            facts.times_sampled[positions],
            facts.versions[positions],
            facts.inserted[positions],
            table_size,
            facts.run_ids(positions),
        )
        self.counts.samples += num
        self._free(finished)
        return Batch(unbundled(columns), info)

    def keys(self) -> Keys:
        """Return the keys of all items, in the order in which they were inserted."""
        return self._facts.keys[self._facts.in_order()]

    def update_priorities(self, keys: Keys, priorities: Floats) -> int:
        """Change priorities of those items that are still there; the last one counts where a key is repeated."""
        found, present = self._facts.find(keys)
        if not len(found):
            return 0
        changed = priorities[present]
        self._facts.priorities[found] = changed
        self._largest_priority = max(self._largest_priority, float(changed.max()))
        positions = self._facts.last_of_each(found)
        changed = self._facts.priorities[positions]
        self._sampler.update(positions, changed)
        self._remover.update(positions, changed)
        return len(positions)

    def delete(self, keys: Keys) -> int:
        """Delete those of the items that are still there."""
        positions = self._facts.last_of_each(self._facts.find(keys)[0])
        self._delete(positions)
        return len(positions)

    def reset(self) -> None:
        """Delete all items, and set all counts to 0."""
        self._delete(self._facts.in_order())
        self.counts = TableCounts()
        self._largest_priority = 0.0

    def frozen(self) -> FrozenItems:
        """Return all items and the state of the selectors, as they are now."""
        facts, selectors = self._facts.copied(), dict[str, Array]()
        for purpose, kind, selector in self._selectors():
            selectors[f"{purpose}/kind"] = np.array(kind)
            selectors |= {f"{purpose}/state/{name}": array for name, array in selector.state_dict().items()}
        columns = {name: column.copied(facts.capacity) for name, column in self._columns.items()}
        return FrozenItems(facts, columns, selectors, self._largest_priority, self._num_inserted)

    def load_state_dict(self, state: Mapping[str, Array], counts: TableCounts) -> None:
        """Take over items, whose rows are in the store under the slots that were saved; there were none before."""
        positions = self._facts.load_state_dict(part_of(state, "items/"))
        priorities = self._facts.priorities[positions]
        self.reserve(0)
        if self.settings.max_times_sampled:
            # At least once, where the new limit is lower.
            rests = self.settings.max_times_sampled - self._facts.times_sampled[positions]
            self._rests[positions] = np.maximum(rests, 1)
        for name, slots in part_of(state, "columns/").items():
            self._columns[name] = ItemColumn(str(state[f"stored/{name}"]), slots.shape[1:])
            self._columns[name].write(positions, slots.astype(np.int64), self._facts.capacity)
        self._use_rows(positions)
        for purpose, kind, selector in self._selectors():
            same = kind == str(state[f"{purpose}/kind"])
            selector.load_state_dict(part_of(state, f"{purpose}/state/") if same else {}, positions, priorities)
        self.counts = counts
        # States of older versions have no such number, and none in which `reset` did not begin anew.
        self._num_inserted = int(state.get("num_inserted", counts.inserts))
        self._largest_priority = float(state["largest_priority"])
        self._remove_surplus()

    def _selectors(self) -> tuple[tuple[str, str, SelectorState], ...]:
        settings = self.settings
        return (
            ("sampler", type(settings.sampler).__name__, self._sampler),
            ("remover", type(settings.remover).__name__, self._remover),
        )

    def _generator(self, purpose: str) -> np.random.Generator:
        return generator(self.settings.seed, "replay", self.settings.name, purpose)

    def _choose(self, num: int) -> tuple[Keys, Floats, Keys]:
        """Return positions, their probabilities, and the positions of items that were sampled for the last time.

        Those are not known to the selectors any more.
        """
        if not self.settings.max_times_sampled:
            return *self._sampler.select(num), np.empty(0, np.int64)
        chosen: list[Keys] = []
        probabilities: list[Floats] = []
        finished: list[Keys] = []
        while num:
            positions, probability = self._sampler.select(num, self._rests)
            np.subtract.at(self._rests, positions, 1)
            done = self._facts.last_of_each(positions[self._rests[positions] == 0])
            self._sampler.delete(done)
            self._remover.delete(done)
            chosen.append(positions)
            probabilities.append(probability)
            finished.append(done)
            num -= len(positions)
        return np.concatenate(chosen), np.concatenate(probabilities), np.concatenate(finished)

    def _remove_surplus(self) -> None:
        while self.counts.size > self.settings.max_size:
            self._remove(self.counts.size - self.settings.max_size)
        if self.settings.max_bytes is None:
            return
        item_bytes = sum(
            math.prod(column.shape) * self._store.columns[column.stored].row_bytes for column in self._columns.values()
        )
        while (excess := self.num_bytes - self.settings.max_bytes) > 0 and self.counts.size > 1:
            # No item frees more than all of its rows, so that no more items are removed than one by one.
            self._remove(min(max(1, excess // max(item_bytes, 1)), self.counts.size - 1))

    def _remove(self, num: int) -> None:
        if len(self._once) < self._facts.capacity:
            self._once = np.broadcast_to(np.int64(1), self._facts.capacity)
        self._delete(self._remover.select(num, self._once)[0])

    def _delete(self, positions: Keys) -> None:
        self._sampler.delete(positions)
        self._remover.delete(positions)
        self._free(positions)

    def _use_rows(self, positions: Keys) -> None:
        for stored, slots in self._slots_by_stored(positions).items():
            uses = self._uses.setdefault(stored, RowUses())
            uses.reserve(self._store.columns[stored].capacity)
            self._store.columns[stored].hold(uses.add(slots))

    def _free(self, positions: Keys) -> None:
        if not len(positions):
            return
        for stored, slots in self._slots_by_stored(positions).items():
            self._store.columns[stored].release(self._uses[stored].remove(slots))
        self._facts.remove(positions)
        self.counts.deletes += len(positions)

    def _slots_by_stored(self, positions: Keys) -> dict[str, Slots]:
        found: dict[str, list[Slots]] = {}
        for column in self._columns.values():
            found.setdefault(column.stored, []).append(column.slots_of(positions))
        return {stored: slots[0] if len(slots) == 1 else np.concatenate(slots) for stored, slots in found.items()}


def part_of(state: Mapping[str, Array], start: str) -> dict[str, Array]:
    """Return the entries of a state whose names have a common start, without it."""
    return {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}


__all__ = ["FoundItems", "ItemTable", "part_of"]
