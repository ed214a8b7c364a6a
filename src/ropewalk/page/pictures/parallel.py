"""The picture of configurations: parallel coordinates, in which parts of axes can be brushed.

Data: `{"metric": name, "names": [hyperparameter, ...], "rows": [[value, ..., metric], ...]}`; each row has a value
for each name, `ABSENT` if it has none, and the metric last. A line skips the axes of numbers on which it has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.style import Option, Style
from ropewalk.search.value_scales import is_logarithmic

ABSENT = "-"
"""In place of a value: a hyperparameter whose condition does not hold. ECharts draws none there."""
_MOST_CATEGORIES = 40


def parallel(data: Mapping[str, Any], style: Style) -> Option:
    """One line for each trial, coloured by its metric; the last axis is the metric."""
    rows = [row for row in data.get("rows", ()) if row[-1] is not None and math.isfinite(row[-1])]
    if not rows:
        return {}
    names = [*data["names"], data["metric"]]
    columns = list(zip(*rows, strict=True))
    axes = [_axis(at, name, column, style, may_be_log=at < len(names) - 1)
            for at, (name, column) in enumerate(zip(names, columns, strict=True))]  # fmt: skip
    values = columns[-1]
    return {
        **style.base(),
        "grid": {},
        "parallel": {"left": 48, "right": 96, "top": 48, "bottom": 24,
                     "parallelAxisDefault": {"areaSelectStyle": {"width": 18, "opacity": 0.25}}},
        "parallelAxis": axes,
        "visualMap": {"type": "continuous", "dimension": len(names) - 1, "min": min(values),
                      "max": max(values) if max(values) > min(values) else min(values) + 1e-9,
                      "inRange": {"color": _RAMP}, "right": 0, "top": "middle", "precision": 3,
                      "text": [f"{max(values):.3g}", f"{min(values):.3g}"],
                      "textStyle": {"color": style.muted}, "calculable": False, "itemHeight": 120},
        "series": [{"type": "parallel", "name": "trials", "inactiveOpacity": 0.04, "activeOpacity": 0.9,
                    "lineStyle": {"width": 1.4, "opacity": 0.65},
                    "data": [[_cell(axis, value) for axis, value in zip(axes, row, strict=True)] for row in rows]}],
    }  # fmt: skip


_RAMP = ["#0072B2", "#56B4E9", "#F0E442", "#E69F00", "#D55E00"]
"""From the least to the greatest value."""


def _axis(at: int, name: str, column: Sequence[Any], style: Style, *, may_be_log: bool) -> Option:
    labels: Option = {"color": style.text, "backgroundColor": _veil(style), "padding": [1, 3], "borderRadius": 3}
    words: Option = {
        "dim": at,
        "name": _short(name),
        "nameTextStyle": {"color": style.text, "fontWeight": "bold"},
        "axisLine": {"lineStyle": {"color": style.muted}},
        "axisTick": {"lineStyle": {"color": style.muted}},
        "axisLabel": labels,
    }
    kinds = kinds_of(column)
    if kinds is None:
        numbers = finite_in(column)
        if may_be_log and is_logarithmic(numbers):
            ends = {"min": _rounded(min(numbers), math.floor), "max": _rounded(max(numbers), math.ceil)}
            return {**words, "type": "log", **ends, "axisLabel": {**labels, "hideOverlap": True}}
        return {**words, "type": "value", "scale": True}
    return {**words, "type": "category", "data": kinds}


def _veil(style: Style) -> str:
    """What lies below the labels of axes, so that lines do not cross them."""
    return f"{style.background}d9"


def kinds_of(column: Sequence[Any]) -> list[str] | None:
    """Return the texts on an axis with these values; None if it is an axis of numbers."""
    there = [value for value in column if value != ABSENT]
    if there and all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        return None
    return sorted({kind_of(value) for value in column})[:_MOST_CATEGORIES]


def finite_in(column: Sequence[Any]) -> list[float]:
    """Return the numbers on an axis of numbers."""
    return [float(value) for value in column if value != ABSENT and math.isfinite(value)]


def kind_of(value: Any) -> str:
    """Return the text of a value on an axis of texts."""
    return _short(str(value))


def _rounded(value: float, towards: Callable[[float], int]) -> float:
    """Return a positive number with two digits, rounded down or up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{towards(value / unit) * unit:.3g}")


def _cell(axis: Option, value: Any) -> float | str | None:
    if axis["type"] == "category":
        return kind_of(value)
    if value == ABSENT:
        return ABSENT
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _short(text: str) -> str:
    shown = escaped(text)
    return shown if len(shown) <= 24 else f"{shown[:23]}…"


__all__ = ["ABSENT", "finite_in", "kind_of", "kinds_of", "parallel"]
