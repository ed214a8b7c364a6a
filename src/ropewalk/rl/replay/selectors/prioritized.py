"""`Prioritized`: items with probability proportional to a power of their priority.

Prioritized Experience Replay (Schaul 2016, https://arxiv.org/abs/1511.05952), equation 1, with the draws of its
appendix B.2.1: one draw in each of as many equal slices of the total as items are drawn. The paper's epsilon is not
added here: it belongs to the priorities that are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.growth import grown
from ropewalk.rl.replay.selectors.drawing import within_limits
from ropewalk.rl.replay.selectors.random_state import random_state_of, set_random_state
from ropewalk.rl.replay.selectors.selector import Floats, Keys, Selector, SelectorState
from ropewalk.rl.replay.selectors.sum_tree import SumTree

_LEAST, _LARGEST = 1e-290, 1e290
"""Powers of priorities are kept between these, so that neither one of them is lost, nor their sum infinite."""


@dataclass(frozen=True, slots=True)
class Prioritized(Selector):
    """Choose an item with probability priority ** exponent / sum of these over the table.

    Schaul et al., Prioritized Experience Replay, 2016 (https://arxiv.org/abs/1511.05952), equation 1.

    An item of priority 0 is not chosen, whatever the exponent, unless all priorities are 0: then all items are equally
    likely.

    Args:
        exponent: alpha of the paper; 0: all items of positive priority are equally likely.

    Raises:
        ValueError: the exponent is negative, or not a number.
    """

    exponent: float

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < np.inf:
            raise ValueError(f"the exponent of priorities is {self.exponent}; it must be 0 or a positive number")

    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector without items."""
        return _PrioritizedState(rng, self.exponent, max_size)


class _PrioritizedState(SelectorState):
    """A sum tree whose leaf number `key` is the power of the priority of item `key`."""

    def __init__(self, rng: np.random.Generator, exponent: float, max_size: int) -> None:
        self._rng = rng
        self._exponent = exponent
        self._tree = SumTree(max_size)
        self._present = np.zeros(0, np.bool_)

    def insert(self, keys: Keys, priorities: Floats) -> None:
        size = int(keys.max(initial=-1)) + 1
        self._tree.reserve(size)
        self._present = grown(self._present, size, False)
        self._present[keys] = True
        self.update(keys, priorities)

    def update(self, keys: Keys, priorities: Floats) -> None:
        with np.errstate(over="ignore", under="ignore"):
            powers = np.clip(priorities**self._exponent, _LEAST, _LARGEST)
        self._tree.set(keys, np.where(priorities > 0, powers, 0.0))

    def delete(self, keys: Keys) -> None:
        self._present[keys] = False
        self._tree.set(keys, np.zeros(len(keys)))

    def select(self, num: int, limits: Keys | None = None) -> tuple[Keys, Floats]:
        total = self._tree.total
        draws = self._rng.random(num)
        if total > 0:
            keys = self._tree.find((np.arange(num) + draws) * (total / num))
            return within_limits(keys, self._tree.leaves[keys] / total, limits)
        present = np.flatnonzero(self._present)
        keys = present[(draws * len(present)).astype(np.int64)]
        return within_limits(keys, np.full(num, 1 / len(present)), limits)

    def clear(self) -> None:
        self._present[:] = False
        self._tree.clear()

    def state_dict(self) -> dict[str, Array]:
        return {"rng": random_state_of(self._rng)}

    def load_state_dict(self, state: Mapping[str, Array], keys: Keys, priorities: Floats) -> None:
        self.clear()
        self.insert(keys, priorities)
        if state:
            set_random_state(self._rng, state["rng"])


__all__ = ["Prioritized"]
