"""`Fifo` and `Lifo`: the item that was inserted first, or last."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.selectors.drawing import repeat_to_limits
from ropewalk.rl.replay.selectors.selector import Floats, Keys, Selector, SelectorState


@dataclass(frozen=True, slots=True)
class Fifo(Selector):
    """Choose the item that was inserted first."""

    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector without items."""
        return _OldestFirst()


@dataclass(frozen=True, slots=True)
class Lifo(Selector):
    """Choose the item that was inserted last."""

    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector without items."""
        return _NewestFirst()


class _InsertionOrder(SelectorState):
    """Keys in the order of their insertion, in entries `_start` to `_end` of a line.

    A key that leaves is marked where it stands. The ends move past marked entries, and the line is written anew when
    less than half of its entries are keys.
    """

    def __init__(self) -> None:
        self._line = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._start: int = 0
        self._end: int = 0
        self._size = 0

    def insert(self, keys: Keys, priorities: Floats) -> None:
        if self._end + len(keys) > len(self._line):
            self._rewrite(room=len(keys))
        end = self._end + len(keys)
        self._places = grown(self._places, int(keys.max(initial=-1)) + 1)
        self._line[self._end : end] = keys
        self._places[keys] = np.arange(self._end, end)
        self._end = end
        self._size += len(keys)

    def update(self, keys: Keys, priorities: Floats) -> None:
        pass

    def delete(self, keys: Keys) -> None:
        self._line[self._places[keys]] = -1
        self._size -= len(keys)
        if self._end - self._start > 2 * self._size + 64:
            self._rewrite(room=0)

    def select(self, num: int, limits: Keys | None = None) -> tuple[Keys, Floats]:
        num_keys = min(num, self._size) if limits is not None else 1
        reach = num_keys
        while True:
            line = self._first_entries(reach)
            keys = line[line >= 0]
            if len(keys) >= num_keys:
                return repeat_to_limits(keys[:num_keys], limits, num)
            if not len(keys):
                self._pass(len(line))
            reach *= 2

    @abstractmethod
    def _first_entries(self, num: int) -> Keys:
        """Return `num` entries from the end where keys are chosen, or all there are."""

    @abstractmethod
    def _pass(self, num: int) -> None:
        """Leave out `num` entries at the end where keys are chosen; none of them is a key any more."""

    def clear(self) -> None:
        self._start = self._end = self._size = 0

    def state_dict(self) -> dict[str, Array]:
        return {}

    def load_state_dict(self, state: Mapping[str, Array], keys: Keys, priorities: Floats) -> None:
        self.clear()
        self.insert(keys, priorities)

    def _keys(self) -> NDArray[np.int64]:
        line = self._line[self._start : self._end]
        return line[line >= 0]

    def _rewrite(self, room: int) -> None:
        keys = self._keys()
        self._line = np.empty(max(2 * (len(keys) + room), 64), np.int64)
        self._line[: len(keys)] = keys
        self._places[keys] = np.arange(len(keys))
        self._start, self._end = 0, len(keys)


class _OldestFirst(_InsertionOrder):
    def _first_entries(self, num: int) -> Keys:
        return self._line[self._start : min(self._start + num, self._end)]

    def _pass(self, num: int) -> None:
        self._start += num


class _NewestFirst(_InsertionOrder):
    def _first_entries(self, num: int) -> Keys:
        return self._line[max(self._end - num, self._start) : self._end][::-1]

    def _pass(self, num: int) -> None:
        self._end -= num


__all__ = ["Fifo", "Lifo"]
