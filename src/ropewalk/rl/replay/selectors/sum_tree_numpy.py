"""The loops of a sum tree in numpy: one step per level for all leaves at once; see `sum_tree`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FAN_OUT = 16
_Floats = NDArray[np.float64]
_Indices = NDArray[np.int64]


def set_leaves(tree: _Floats, starts: _Indices, leaves: _Indices, values: _Floats) -> None:
    """Set leaves, and all sums above them.

    Args:
        tree: all levels one after the other, leaves first.
        starts: where each level starts, and where the last one ends.
        leaves: numbers of leaves; the last value counts where one is repeated.
        values: values of the leaves.
    """
    tree[leaves] = values
    nodes = leaves
    for level in range(len(starts) - 2):
        nodes = nodes // FAN_OUT
        groups = tree[starts[level] : starts[level + 1]].reshape(-1, FAN_OUT)
        # In order, as the compiled loop adds them; `sum` would add in pairs, with other rounding errors.
        tree[starts[level + 1] + nodes] = groups[nodes].cumsum(1)[:, -1]


def find_leaves(tree: _Floats, starts: _Indices, targets: _Floats) -> _Indices:
    """Return, for each target, the leaf at which the running sum of all leaves exceeds it; never an empty one.

    Args:
        tree: as in `set_leaves`; not all leaves are 0.
        starts: as in `set_leaves`.
        targets: between 0 and the total, which they may reach by rounding.
    """
    nodes = np.zeros(len(targets), np.int64)
    every = np.arange(len(targets))
    rest = targets
    for level in range(len(starts) - 2, -1, -1):
        values = tree[starts[level] : starts[level + 1]].reshape(-1, FAN_OUT)[nodes]
        sums = values.cumsum(1)
        child = (sums <= rest[:, None]).sum(1)
        beyond = np.flatnonzero(child == FAN_OUT)
        if len(beyond):
            # The target is the sum, or more by a rounding error: the last child that is not empty.
            child[beyond] = FAN_OUT - 1 - (values[beyond, ::-1] > 0).argmax(1)
        rest = rest - np.where(child > 0, sums[every, child - 1], 0.0)
        nodes = nodes * FAN_OUT + child
    return nodes


__all__ = ["FAN_OUT", "find_leaves", "set_leaves"]
