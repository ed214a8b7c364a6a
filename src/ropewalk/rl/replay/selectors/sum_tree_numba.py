"""The loops of `sum_tree_numpy`, compiled by numba: the same bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ropewalk.compiling import compiled
from ropewalk.rl.replay.selectors.sum_tree_numpy import FAN_OUT

_Floats = NDArray[np.float64]
_Indices = NDArray[np.int64]


@compiled
def set_leaves(tree: _Floats, starts: _Indices, leaves: _Indices, values: _Floats) -> None:
    """Implement `sum_tree_numpy.set_leaves`."""
    for i in range(leaves.size):
        tree[leaves[i]] = values[i]
    width = 1
    for level in range(starts.size - 2):
        width *= FAN_OUT
        last = -1
        for i in range(leaves.size):
            node = leaves[i] // width
            if node != last:
                first = starts[level] + node * FAN_OUT
                total = 0.0
                for child in range(first, first + FAN_OUT):
                    total += tree[child]
                tree[starts[level + 1] + node] = total
                last = node


@compiled
def find_leaves(tree: _Floats, starts: _Indices, targets: _Floats) -> _Indices:
    """Implement `sum_tree_numpy.find_leaves`."""
    found = np.empty(targets.size, np.int64)
    for i in range(targets.size):
        rest = targets[i]
        node = 0
        for level in range(starts.size - 2, -1, -1):
            first = starts[level] + node * FAN_OUT
            before, total, child, last = 0.0, 0.0, 0, 0
            while child < FAN_OUT:
                value = tree[first + child]
                if value > 0:
                    last = child
                    before = total
                total += value
                if rest < total:
                    break
                child += 1
            if child == FAN_OUT:
                child = last
            rest -= before
            node = node * FAN_OUT + child
        found[i] = node
    return found


__all__ = ["find_leaves", "set_leaves"]
