"""The picture of curves: one metric of one or more runs over steps or time.

Data: `{"metric": name, "x": "step", "log_x": false, "log_y": false, "range": [first, last] or null,
"lines": [{"name": n, "color": index, "points": [[x, y], ...], "raw": [[x, y], ...] or null}, ...]}`; y may be NaN.
`raw` has the points before they were smoothed, and is drawn faint. With `"legend": false` there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.style import Option, Style

_DASHES = ("solid", "dashed", "dotted")
"""Types of lines: the next one is used when all colours were."""


def curves(data: Mapping[str, Any], style: Style) -> Option:
    """One line for each run; of a smoothed one, its own points are faint below it."""
    lines: Sequence[Mapping[str, Any]] = data.get("lines", ())
    log_x, log_y = bool(data.get("log_x")), bool(data.get("log_y"))
    if not any(_point(x, y, log_x, log_y)[1] is not None for line in lines for x, y in line["points"]):
        return {}
    series: list[Option] = []
    for line in lines:
        if line.get("raw"):
            series.append(_line(line, line["raw"], style, log_x, log_y, is_faint=True))
        series.append(_line(line, line["points"], style, log_x, log_y, is_faint=False))
    limits = data.get("range")
    ends = {} if limits is None or log_x else {"min": limits[0], "max": limits[1]}
    is_whole = all(float(end).is_integer() for end in limits or ())
    label = {"color": style.muted, "hideOverlap": True, "showMinLabel": is_whole, "showMaxLabel": is_whole}
    has_legend = len(lines) > 1 and data.get("legend", True)
    return {
        **style.base(),
        "grid": {"left": 56, "right": 20, "top": 34 if has_legend else 14, "bottom": 36},
        "legend": style.legend(data=[escaped(line["name"]) for line in lines], show=has_legend, right=56, left=8),
        "tooltip": {**style.base()["tooltip"], "trigger": "axis", "order": "valueDesc"},
        "xAxis": style.axis(
            escaped(data.get("x", "")),
            type="log" if log_x else "value",
            scale=True,
            nameGap=22,
            axisLine={"onZero": False, "lineStyle": {"color": style.muted}},
            axisLabel=label,
            **ends,
        ),
        "yAxis": style.axis("", type="log" if log_y else "value", scale=True),
        "dataZoom": [{"type": "inside", "filterMode": "none", "zoomOnMouseWheel": False, "moveOnMouseWheel": False,
                      "moveOnMouseMove": "shift", "preventDefaultMouseMove": False}],
        "toolbox": {"top": -60, "feature": {"dataZoom": {"yAxisIndex": "none", "filterMode": "none"}}},
        "series": series,
    }  # fmt: skip


def _line(
    line: Mapping[str, Any],
    points: Sequence[Sequence[float]],
    style: Style,
    log_x: bool,
    log_y: bool,
    *,
    is_faint: bool,
) -> Option:
    number = int(line.get("color", 0))
    color = style.colors[number % len(style.colors)]
    dash = _DASHES[number // len(style.colors) % len(_DASHES)]
    drawn = [_point(x, y, log_x, log_y) for x, y in points]
    alone = _alone(drawn)
    faint: Option = {"silent": True, "tooltip": {"show": False}, "z": 1} if is_faint else {"z": 2}
    return {
        "type": "line",
        "name": escaped(line["name"]),
        "data": [{"value": point, "symbol": "emptyCircle"} if at in alone else point for at, point in enumerate(drawn)],
        "showSymbol": bool(alone),
        "symbol": "none" if alone else "emptyCircle",
        "symbolSize": 6,
        "lineStyle": {"width": 1 if is_faint else 1.6, "opacity": 0.28 if is_faint else 1.0, "type": dash},
        "itemStyle": {"color": color},
        "emphasis": {"disabled": is_faint, "focus": "none"},
        **faint,
    }


def _alone(points: Sequence[Sequence[float | None]]) -> set[int]:
    """Return the places of points with a gap or nothing on both sides, which no line shows."""
    known = [False, *(y is not None for _, y in points), False]
    return {at for at in range(len(points)) if known[at + 1] and not known[at] and not known[at + 2]}


def _point(x: float, y: float, log_x: bool, log_y: bool) -> list[float | None]:
    """Return a point with six digits; a gap where it cannot be drawn."""
    is_drawn = math.isfinite(y) and not (log_y and y <= 0) and not (log_x and x <= 0)
    return [x, float(f"{y:.6g}") if is_drawn else None]


__all__ = ["curves"]
