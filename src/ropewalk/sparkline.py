"""Sparklines: curves that are one line of text high."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_GAP = " "


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as bars, from the least to the greatest finite one.

    Args:
        values: the values, in their order.
        width: how many characters to draw at most; each one shows the mean of as many values.

    Returns:
        The bars; NaN is a space, infinities are the highest and lowest bars.

    Example:
        >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8), sparkline([0, 0, 8, 8], 2), sparkline([5], 9)
        ('▁▂▃▄▅▆▇█', '▁█', '▄')
    """
    num = min(width, len(values))
    means = [_mean(values[len(values) * i // num : len(values) * (i + 1) // num]) for i in range(num)]
    finite = [value for value in means if math.isfinite(value)]
    least, greatest = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_bar(value, least, greatest) for value in means)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    # Within the bounds of its values, although sums are rounded: a constant is to be drawn as one.
    return min(max(sum(value / len(known) for value in known), min(known)), max(known))


def _bar(value: float, least: float, greatest: float) -> str:
    if math.isnan(value):
        return _GAP
    if math.isinf(value):
        return _BARS[-1] if value > 0 else _BARS[0]
    if greatest == least:
        return _BARS[len(_BARS) // 2 - 1]
    span = greatest - least
    # Halves, where the difference of two large numbers is infinite; the halves of the smallest numbers are equal.
    share = (value - least) / span if math.isfinite(span) else (value / 2 - least / 2) / (greatest / 2 - least / 2)
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
