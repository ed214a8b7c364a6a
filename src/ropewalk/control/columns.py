"""Rows of numbers as a panel gives them: by column, only those after a cursor, and never too many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

MOST_POINTS = 2000
"""Points of a curve in one answer: a screen has no more columns of pixels for it."""


def finite(value: object) -> float | None:
    """Return a number that JSON has; None for NaN, infinities and what is not a number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None


def places(first: int, end: int, most: int = MOST_POINTS) -> Sequence[int]:
    """Return the indices from `first` to `end` - 1: all, or of more than `most` every n-th one, and the last.

    Example:
        >>> list(places(3, 6)), list(places(0, 10, most=4))
        ([3, 4, 5], [0, 3, 6, 9])
    """
    first = max(0, first)
    step = -(-(end - first) // most) if end > first else 1
    if step <= 1:
        return range(first, end)
    return range(end - 1 - (end - 1 - first) // step * step, end, step)


def columns(rows: Iterable[Mapping[str, object]], names: Iterable[str]) -> dict[str, list[float | None]]:
    """Return the named columns of rows; None where a row has no finite number."""
    rows = list(rows)
    return {name: [finite(row.get(name)) for row in rows] for name in names}


__all__ = ["MOST_POINTS", "columns", "finite", "places"]
