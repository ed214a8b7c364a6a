"""`SumTree`: numbers whose running sum is searched and changed in logarithmic time.

    level 2                  [ sum of 16 ]              one group of 16 nodes
    level 1    [ sum of 16 | sum of 16 | ... ]          a node is the sum of a group below it
    level 0    [ leaf | leaf | leaf | leaf | ... ]

Sums are float64. A change of a leaf adds up the groups above it anew, instead of adding a difference to each, so
rounding errors do not accumulate: the tree is always the same, bit for bit, as one that is built from its leaves. A
tree that adds differences has to be rebuilt when its root is wrong, as Reverb's is.

16 children and not 2, because numpy takes one step for each level.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.replay.selectors import sum_tree_numpy
from ropewalk.rl.replay.selectors.sum_tree_numpy import FAN_OUT

COMPILED_FROM = 1 << 13
"""For trees of fewer leaves numpy is used: loading compiled code takes about a second, once."""


class SumTree:
    """Leaves by number; those that were not set are 0.

    Args:
        max_leaves: how many leaves it is going to have, for the choice between numpy and numba.
    """

    def __init__(self, max_leaves: int) -> None:
        self._loops: Any = (_compiled() if max_leaves >= COMPILED_FROM else None) or sum_tree_numpy
        self._starts = _starts(FAN_OUT)
        self._tree = np.zeros(self._starts[-1])

    @property
    def capacity(self) -> int:
        """Number of leaves that there is room for."""
        return int(self._starts[1])

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._tree[self._starts[-2] :].cumsum()[-1])

    @property
    def leaves(self) -> NDArray[np.float64]:
        """All leaves; not to be changed."""
        return self._tree[: self.capacity]

    def reserve(self, num_leaves: int) -> None:
        """Make room for at least `num_leaves` leaves."""
        if num_leaves <= self.capacity:
            return
        leaves = self.leaves
        self._starts = _starts(max(num_leaves, 2 * self.capacity))
        self._tree = np.zeros(self._starts[-1])
        self._tree[: len(leaves)] = leaves
        for level in range(len(self._starts) - 2):
            below = self._tree[self._starts[level] : self._starts[level + 1]]
            sums = below.reshape(-1, FAN_OUT).cumsum(1)[:, -1]
            self._tree[self._starts[level + 1] :][: len(sums)] = sums

    def set(self, leaves: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set leaves, for which there is room; the last value counts where one is repeated.

        Args:
            leaves: numbers of the leaves.
            values: not negative.
        """
        self._loops.set_leaves(self._tree, self._starts, leaves, values)

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return, for each target, the leaf at which the running sum exceeds it; the total must be positive.

        A target that is not less than the total finds the last leaf that is not 0. No leaf that is 0 is ever found.
        """
        return self._loops.find_leaves(self._tree, self._starts, targets)

    def clear(self) -> None:
        """Set all leaves to 0."""
        self._tree[:] = 0


def _starts(num_leaves: int) -> NDArray[np.int64]:
    """Return where each level starts, and where the last one ends; each has whole groups, the last one has one."""
    sizes = [_whole_groups(num_leaves)]
    while sizes[-1] > FAN_OUT:
        sizes.append(_whole_groups(sizes[-1] // FAN_OUT))
    return np.cumsum([0, *sizes])


def _whole_groups(size: int) -> int:
    return -(-size // FAN_OUT) * FAN_OUT


@functools.cache
def _compiled() -> ModuleType | None:
    try:
        return importlib.import_module("ropewalk.rl.replay.selectors.sum_tree_numba")
    except ImportError:
        # Numba is not installed, or does not support this version of numpy.
        return None


__all__ = ["COMPILED_FROM", "SumTree"]
