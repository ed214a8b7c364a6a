"""Where the axis of a metric ends if some trials are far worse than most: they are marked at its end."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.page.style import Option, Style
from ropewalk.search.value_scales import shown_range, with_margin

BEYOND = "beyond the axis"
"""Name of the series of these marks."""


def without_far_out(points: Sequence[tuple[float, float, str]], mode: str, style: Style) -> tuple[Option, list[Option]]:
    """Return entries for the axis of values, and a series with a mark for each point beyond its end; often nothing.

    Args:
        points: place on the other axis, value, and name of each.
        mode: "max" or "min", which values are better.
        style: colours.
    """
    low, high = shown_range((value for _, value, _ in points), mode)
    beyond = [(at, value, name) for at, value, name in points if not low <= value <= high]
    if not beyond:
        return {}, []
    is_above = mode == "min"
    end = with_margin(low, high)[is_above]
    marks = [{"name": f"{name}: {value:.3g}", "value": [at, end]} for at, value, name in beyond]
    label = {"color": style.muted, "showMaxLabel": not is_above, "showMinLabel": is_above}
    series: Option = {
        "type": "scatter", "name": BEYOND, "symbol": "triangle", "symbolRotate": 0 if is_above else 180,
        "symbolSize": 10, "itemStyle": {"color": style.warn}, "z": 5, "data": marks,
    }  # fmt: skip
    return {"max" if is_above else "min": end, "axisLabel": label}, [series]


__all__ = ["BEYOND", "without_far_out"]
