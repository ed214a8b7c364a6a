"""Draws of items that may be chosen a limited number of times."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.replay.selectors.selector import Floats, Keys


def within_limits(keys: Keys, probabilities: Floats, limits: Keys | None) -> tuple[Keys, Floats]:
    """Leave out draws of an item beyond its limit.

    If those are drawn again after all items that reached their limit were removed, the result is distributed as if
    items were drawn one by one and removed at once: an item's probability given that it is none of the finished
    ones is the one without them.

    Args:
        keys: drawn with replacement.
        probabilities: theirs.
        limits: by key, how many times each may be drawn; None: any number of times.
    """
    if limits is None:
        return keys, probabilities
    allowed = occurrences(keys) < limits[keys]
    return keys[allowed], probabilities[allowed]


def occurrences(keys: Keys) -> Keys:
    """Return, for each entry, how many entries before it are equal to it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.empty(len(keys), np.int64)
    counts[order] = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    return counts


def repeat_to_limits(keys: Keys, limits: Keys | None, num: int) -> tuple[Keys, Floats]:
    """Choose items in their order, each until its limit is reached; all with probability 1.

    Args:
        keys: at least one, and `num` of them where there are enough.
        limits: as in `within_limits`; None: the first item is chosen each time.
        num: how many choices to make at most.
    """
    chosen = np.full(num, keys[0]) if limits is None else np.repeat(keys, np.minimum(limits[keys], num))[:num]
    return chosen, np.ones(len(chosen))


__all__ = ["occurrences", "repeat_to_limits", "within_limits"]
