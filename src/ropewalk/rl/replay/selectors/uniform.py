"""`Uniform`: each item is as likely as another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.selectors.drawing import within_limits
from ropewalk.rl.replay.selectors.random_state import random_state_of, set_random_state
from ropewalk.rl.replay.selectors.selector import Floats, Keys, Selector, SelectorState


@dataclass(frozen=True, slots=True)
class UniformSelector(Selector):
    """Choose each item with the same probability, whatever its priority."""

    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector without items."""
        return _UniformState(rng)


class _UniformState(SelectorState):
    """All keys in the first entries of one array, in no order; a key that leaves is replaced by one from the end."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._keys = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._size = 0

    def insert(self, keys: Keys, priorities: Floats) -> None:
        size = self._size + len(keys)
        self._keys = grown(self._keys, size)
        self._places = grown(self._places, int(keys.max(initial=-1)) + 1)
        self._keys[self._size : size] = keys
        self._places[keys] = np.arange(self._size, size)
        self._size = size

    def update(self, keys: Keys, priorities: Floats) -> None:
        pass

    def delete(self, keys: Keys) -> None:
        size = self._size - len(keys)
        places = self._places[keys]
        self._keys[places] = -1
        tail = self._keys[size : self._size]
        moved = tail[tail >= 0]
        holes = places[places < size]
        self._keys[holes] = moved
        self._places[moved] = holes
        self._size = size

    def select(self, num: int, limits: Keys | None = None) -> tuple[Keys, Floats]:
        keys = self._keys[self._rng.integers(0, self._size, num)]
        return within_limits(keys, np.full(num, 1 / self._size), limits)

    def clear(self) -> None:
        self._size = 0

    def state_dict(self) -> dict[str, Array]:
        return {"keys": self._keys[: self._size].copy(), "rng": random_state_of(self._rng)}

    def load_state_dict(self, state: Mapping[str, Array], keys: Keys, priorities: Floats) -> None:
        self.clear()
        ordered = state["keys"].astype(np.int64) if state else keys
        self.insert(ordered, priorities)
        if state:
            set_random_state(self._rng, state["rng"])


Uniform = UniformSelector
"""The name in `ropewalk.rl`."""

__all__ = ["Uniform", "UniformSelector"]
