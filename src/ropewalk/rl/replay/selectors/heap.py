"""`MinHeap` and `MaxHeap`: the item of the lowest, or the highest, priority; of several, the one updated first."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.selectors.drawing import repeat_to_limits
from ropewalk.rl.replay.selectors.selector import Floats, Keys, Selector, SelectorState


@dataclass(frozen=True, slots=True)
class MinHeap(Selector):
    """Choose the item of the lowest priority; of several, the one that was inserted or updated first."""

    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector without items."""
        return _HeapState(1.0)


@dataclass(frozen=True, slots=True)
class MaxHeap(Selector):
    """Choose the item of the highest priority; of several, the one that was inserted or updated first."""

    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector without items."""
        return _HeapState(-1.0)


class _HeapState(SelectorState):
    """A heap of (rank, ticket, key). Each change of an item gives it a new ticket; entries with an old one are skipped.

    The heap is built anew when less than half of its entries are valid.
    """

    def __init__(self, sign: float) -> None:
        self._sign = sign
        self._heap: list[tuple[float, int, int]] = []
        self._ranks = np.empty(0, np.float64)
        self._tickets = np.empty(0, np.int64)
        self._next_ticket = 0
        self._size = 0

    def insert(self, keys: Keys, priorities: Floats) -> None:
        size = int(keys.max(initial=-1)) + 1
        self._ranks = grown(self._ranks, size)
        self._tickets = grown(self._tickets, size, -1)
        self._size += len(keys)
        self.update(keys, priorities)

    def update(self, keys: Keys, priorities: Floats) -> None:
        tickets = np.arange(self._next_ticket, self._next_ticket + len(keys))
        self._next_ticket += len(keys)
        self._ranks[keys] = priorities * self._sign
        self._tickets[keys] = tickets
        if len(self._heap) + len(keys) > 2 * self._size + 64:
            self._rebuild()
            return
        for entry in zip(self._ranks[keys].tolist(), tickets.tolist(), keys.tolist(), strict=True):
            heapq.heappush(self._heap, entry)

    def delete(self, keys: Keys) -> None:
        self._tickets[keys] = -1
        self._size -= len(keys)

    def select(self, num: int, limits: Keys | None = None) -> tuple[Keys, Floats]:
        num_keys = min(num, self._size) if limits is not None else 1
        valid: list[tuple[float, int, int]] = []
        while len(valid) < num_keys:
            entry = heapq.heappop(self._heap)
            if self._tickets[entry[2]] == entry[1]:
                valid.append(entry)
        for entry in valid:
            heapq.heappush(self._heap, entry)
        return repeat_to_limits(np.array([key for _, _, key in valid]), limits, num)

    def clear(self) -> None:
        self._tickets[:] = -1
        self._heap = []
        self._size = 0

    def state_dict(self) -> dict[str, Array]:
        keys = np.flatnonzero(self._tickets >= 0)
        return {"keys": keys[np.argsort(self._tickets[keys])]}

    def load_state_dict(self, state: Mapping[str, Array], keys: Keys, priorities: Floats) -> None:
        self.clear()
        order = np.argsort(keys)
        ordered = state["keys"].astype(np.int64) if state else keys
        self.insert(ordered, priorities[order[np.searchsorted(keys, ordered, sorter=order)]])

    def _rebuild(self) -> None:
        keys = np.flatnonzero(self._tickets >= 0)
        entries = self._ranks[keys].tolist(), self._tickets[keys].tolist(), keys.tolist()
        self._heap = list(zip(*entries, strict=True))
        heapq.heapify(self._heap)


__all__ = ["MaxHeap", "MinHeap"]
