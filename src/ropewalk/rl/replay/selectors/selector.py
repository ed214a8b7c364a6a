"""`Selector`: chooses which items are sampled, or which ones are removed when a table is full.

A selector is a setting, such as `Fifo()`; `make` gives its state for one table. Keys here are the positions of items in
their table: small numbers that are used again after their item was deleted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array

Keys = NDArray[np.int64]
Floats = NDArray[np.float64]


class Selector(ABC):
    """Settings of a selector. Each can choose both the items to sample and those to remove."""

    @abstractmethod
    def make(self, rng: np.random.Generator, max_size: int) -> SelectorState:
        """Return the state of a selector that has no items yet.

        Args:
            rng: decides all draws; belongs to the state from now on.
            max_size: number of items that the table is going to have, for the choice of an implementation.
        """


class SelectorState(ABC):
    """Which items a table has, as its sampler or its remover needs to know them. Not thread-safe.

    Keys of one call differ from each other.
    """

    @abstractmethod
    def insert(self, keys: Keys, priorities: Floats) -> None:
        """Add items, in this order; none of them is there yet."""

    @abstractmethod
    def update(self, keys: Keys, priorities: Floats) -> None:
        """Change priorities of items that are there."""

    @abstractmethod
    def delete(self, keys: Keys) -> None:
        """Remove items that are there."""

    @abstractmethod
    def select(self, num: int, limits: Keys | None = None) -> tuple[Keys, Floats]:
        """Choose items, as if each one were put back; there is at least one.

        Args:
            num: how many, at least 1.
            limits: by key, how many times each item may still be chosen, at least once; None: any number of times.

        Returns:
            Keys, shape (num,), and the probability of each one, as of now. There are fewer than `num`, but at least
            one, where limits were reached: the caller deletes items that reached theirs, and selects again.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove all items."""

    @abstractmethod
    def state_dict(self) -> dict[str, Array]:
        """Return what decides later choices, beside the items and their priorities."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Array], keys: Keys, priorities: Floats) -> None:
        """Take over a state.

        Args:
            state: what `state_dict` of the same kind of selector returned; empty: a selector of another kind or of an
                older version saved, and the items come in the order of `keys`.
            keys: all items, in the order in which they were inserted.
            priorities: theirs.
        """


__all__ = ["Floats", "Keys", "Selector", "SelectorState"]
