"""How values are drawn: whether on a logarithmic axis, and which range of a metric."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ropewalk.quantities import wants_log_axis

_LOW = 0.25
"""The lowest part of the range in which half of the values of a hyperparameter must be for a logarithmic axis: a
uniform distribution down to almost 0 is none."""
_FAR_OUT = 3.0
"""Interquartile ranges from the worse quartile beyond which a value is far out (Tukey, Exploratory Data Analysis)."""
_SQUEEZED = 0.25
"""Far values are left out if the others would have less than this share of the axis."""
_MARGIN = 0.05
"""Room at both ends of an axis, as a share of its range."""


def is_logarithmic(values: Sequence[float]) -> bool:
    """Return whether the values of a hyperparameter are drawn on a logarithmic axis."""
    return wants_log_axis(values) and statistics.median(values) < (1 - _LOW) * min(values) + _LOW * max(values)


def shown_range(values: Iterable[float], mode: str) -> tuple[float, float]:
    """Return the least and the greatest value of a metric that a linear axis shows.

    One trial that diverges would make all others one flat line, so values that are far worse than the bulk are left out
    if they do that; the best one never is.

    Args:
        values: values of the metric; those that are not finite do not count.
        mode: "max" or "min", which values are better.

    Raises:
        ValueError: no value is finite.

    Example:
        >>> shown_range([0.5, 0.7, 0.9, 1.0, 1e9], "min")
        (0.5, 1.0)
    """
    sign = 1 if mode == "min" else -1
    known = sorted(sign * value for value in values if math.isfinite(value))
    if not known:
        raise ValueError("a range needs a value that is finite")
    better, worse = known[len(known) // 4], known[(3 * len(known) - 1) // 4]
    near = [value for value in known if value <= worse + _FAR_OUT * (worse - better)]
    is_squeezed = 0 < near[-1] - known[0] < _SQUEEZED * (known[-1] - known[0])
    ends = sign * known[0], sign * (near if is_squeezed else known)[-1]
    return min(ends), max(ends)


def with_margin(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis for a range; marks for values beyond the range stand there."""
    margin = _MARGIN * (high - low)
    return low - margin, high + margin


__all__ = ["is_logarithmic", "shown_range", "with_margin"]
