"""`ItemFacts`: facts of a table's items in one array each, at positions that are used again.

The key of an item names its position, so that items are found without a search: the position in the lowest bits, and
the number of the item's insertion above them, by which a key of an item that left is recognised. A table that comes
back from an older state counts insertions again that it has had before. So each of its lives begins at another number,
or priorities that are written late would be those of other items.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.selectors.selector import Floats, Keys

POSITION_BITS = 28
_POSITION = (1 << POSITION_BITS) - 1
NUMBER_BITS = 29
"""The rest of the 63 bits is for the number of a shard, see `shards.py`."""
_NUMBER = (1 << NUMBER_BITS) - 1
_LIFE = 331_804_471
"""Distance between the numbers at which two lives begin: by the golden ratio of all, so that those of some lives are
far from each other, whatever their number."""


class ItemFacts:
    """Facts by position.

    Attributes:
        keys: -1 where there is no item.
        priorities: priorities of the items.
        times_sampled: how many times each was sampled.
        versions: versions of the weights that chose the actions.
        inserted: numbers of their insertion in the table.
        life: number of this life of the table; keys of two lives differ.
    """

    def __init__(self) -> None:
        self.life = 0
        self.keys = np.empty(0, np.int64)
        self.priorities = np.empty(0, np.float64)
        self.times_sampled = np.empty(0, np.int64)
        self.versions = np.empty(0, np.int64)
        self.inserted = np.empty(0, np.int64)
        self._runs = np.empty(0, np.int64)
        self._run_ids: list[str] = []
        self._run_numbers: dict[str, int] = {}
        self._scratch = np.empty(0, np.int64)
        self._free = np.empty(0, np.int64)
        self._num_free = 0
        self._num_touched = 0

    @property
    def capacity(self) -> int:
        """Number of positions that there is room for."""
        return len(self.keys)

    def present(self) -> Keys:
        """Return the positions of all items, in no order."""
        return np.flatnonzero(self.keys[: self._num_touched] >= 0)

    def in_order(self) -> Keys:
        """Return the positions of all items, in the order in which they were inserted."""
        positions = self.present()
        return positions[np.argsort(self.inserted[positions])]

    def reserve(self, num_items: int) -> None:
        """Make room for `num_items` more items."""
        size = self._num_touched + max(0, num_items - self._num_free)
        if size <= self.capacity:
            return
        self.keys = grown(self.keys, size, -1)
        self.priorities = grown(self.priorities, size)
        self.times_sampled = grown(self.times_sampled, size)
        self.versions = grown(self.versions, size)
        self.inserted = grown(self.inserted, size)
        self._runs = grown(self._runs, size)
        self._scratch = grown(self._scratch, size)
        self._free = grown(self._free, size)

    def add(self, first: int, priorities: Floats, version: int, run_id: str) -> Keys:
        """Add items, for which there is room, and return their positions.

        Args:
            first: number of the first one's insertion.
            priorities: priorities of the items.
            version: version of the weights.
            run_id: run id of the stream.
        """
        num, run = len(priorities), self._run_number(run_id)
        again = min(num, self._num_free)
        self._num_free -= again
        positions = np.concatenate(
            (
                self._free[self._num_free : self._num_free + again],
                np.arange(self._num_touched, self._num_touched + num - again),
            )
        )
        self._num_touched += num - again
        numbers = np.arange(first, first + num)
        self.keys[positions] = self._keys(numbers, positions)
        self.priorities[positions] = priorities
        self.times_sampled[positions] = 0
        self.versions[positions] = version
        self.inserted[positions] = numbers
        self._runs[positions] = run
        return positions

    def remove(self, positions: Keys) -> None:
        """Remove items; positions differ from each other."""
        self.keys[positions] = -1
        self._free[self._num_free : self._num_free + len(positions)] = positions
        self._num_free += len(positions)

    def find(self, keys: Keys) -> tuple[Keys, NDArray[np.bool_]]:
        """Return the positions of those items that are there, and for each key whether it is among them."""
        positions = keys & _POSITION
        present = (keys >= 0) & (positions < self.capacity)
        present[present] = self.keys[positions[present]] == keys[present]
        return positions[present], present

    def last_of_each(self, positions: Keys) -> Keys:
        """Return positions without repetition, in the order in which each of them occurs last."""
        places = np.arange(len(positions))
        self._scratch[positions] = places
        return positions[self._scratch[positions] == places]

    def run_ids(self, positions: Keys) -> tuple[str, ...]:
        """Return the run id of each item."""
        return tuple(map(self._run_ids.__getitem__, self._runs[positions].tolist()))

    def copied(self) -> ItemFacts:
        """Return a copy, of which only `state_dict` may be called."""
        other, num = ItemFacts(), self._num_touched
        other.keys = self.keys[:num].copy()
        other.priorities = self.priorities[:num].copy()
        other.times_sampled = self.times_sampled[:num].copy()
        other.versions = self.versions[:num].copy()
        other.inserted = self.inserted[:num].copy()
        other._runs = self._runs[:num].copy()
        other._run_ids = list(self._run_ids)
        other._free = self._free[: self._num_free].copy()
        other._num_touched, other._num_free = num, self._num_free
        return other

    def state_dict(self) -> dict[str, Array]:
        """Return all facts of the items, in the order of their insertion, and the positions that are free."""
        self._forget_runs()
        positions = self.in_order()
        return {
            "positions": positions,
            "keys": self.keys[positions],
            "priorities": self.priorities[positions],
            "times_sampled": self.times_sampled[positions],
            "versions": self.versions[positions],
            "inserted": self.inserted[positions],
            "runs": self._runs[positions],
            "run_ids": np.array(self._run_ids, np.str_),
            "free": self._free[: self._num_free].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> Keys:
        """Take over items; there were none before. Returns their positions, in the order of their insertion."""
        positions, inserted = state["positions"].astype(np.int64), state["inserted"].astype(np.int64)
        self._num_free = len(state["free"])
        self._num_touched = len(positions) + self._num_free
        self.reserve(self._num_free)
        self._free[: self._num_free] = state["free"]
        # States of older versions have no keys.
        self.keys[positions] = state["keys"] if "keys" in state else self._keys(inserted, positions)
        self.priorities[positions] = state["priorities"]
        self.times_sampled[positions] = state["times_sampled"]
        self.versions[positions] = state["versions"]
        self.inserted[positions] = inserted
        self._runs[positions] = state["runs"]
        self._run_ids = [str(run_id) for run_id in state["run_ids"]]
        self._run_numbers = {run_id: number for number, run_id in enumerate(self._run_ids)}
        return positions

    def _keys(self, numbers: Keys, positions: Keys) -> Keys:
        return (numbers + self.life * _LIFE & _NUMBER) << POSITION_BITS | positions

    def _run_number(self, run_id: str) -> int:
        number = self._run_numbers.get(run_id)
        if number is None:
            if len(self._run_ids) & (len(self._run_ids) - 1) == 0 and len(self._run_ids) >= 64:
                self._forget_runs()
            number = self._run_numbers[run_id] = len(self._run_ids)
            self._run_ids.append(run_id)
        return number

    def _forget_runs(self) -> None:
        """Leave out run ids of which there are no items."""
        present = self.present()
        used, self._runs[present] = np.unique(self._runs[present], return_inverse=True)
        self._run_ids = [self._run_ids[number] for number in used.tolist()]
        self._run_numbers = {run_id: number for number, run_id in enumerate(self._run_ids)}


__all__ = ["NUMBER_BITS", "POSITION_BITS", "ItemFacts"]
