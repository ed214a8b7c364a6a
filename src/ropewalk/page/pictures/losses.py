"""The picture of a trainer's loss: each step, a mean over the last steps, and the norm of the gradients if it is known.

Data: see `ropewalk.training.panels.losses`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style

_SMOOTHING = 0.95
"""Of the exponential mean, corrected for its begin (D. P. Kingma, J. Ba, Adam, 2015, section 3)."""


def losses(data: Mapping[str, Any], style: Style) -> Option:
    """A pale line of all steps, and a strong one of their exponential mean."""
    steps: Sequence[int] = data.get("step", ())
    if not steps:
        return {}
    values: Sequence[float | None] = data["loss"]
    norms: Sequence[float | None] = data["gradient_norm"]
    colors = style.colors
    has_norms = any(norm is not None for norm in norms)
    series = [
        _line("loss", list(zip(steps, values, strict=True)), colors[0], width=1, opacity=0.35),
        _line("mean of the last steps", list(zip(steps, smoothed(values), strict=True)), colors[0], width=2),
    ]
    axes = [style.axis("loss", scale=True, nameGap=46)]
    if has_norms:
        norm = _line("norm of gradients", list(zip(steps, norms, strict=True)), colors[3], width=1, opacity=0.7)
        series.append({**norm, "yAxisIndex": 1})
        axes.append(style.axis("norm of gradients", nameGap=46, position="right", splitLine={"show": False}))
    return {
        **style.base(),
        "legend": style.legend(left=8),
        "grid": {"left": 72, "right": 72 if has_norms else 24, "top": 36, "bottom": 44},
        "tooltip": {**style.base()["tooltip"], "trigger": "axis"},
        "xAxis": style.axis("step", min="dataMin", max="dataMax", minInterval=1, nameGap=26),
        "yAxis": axes,
        "series": series,
    }


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Return the exponential mean up to each value; gaps stay gaps."""
    mean, weight = 0.0, 0.0
    found: list[float | None] = []
    for value in values:
        if value is None:
            found.append(None)
            continue
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * value
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        found.append(mean / weight)
    return found


def _line(name: str, points: list[tuple[int, float | None]], color: str, *, width: int, opacity: float = 1) -> Option:
    return {
        "name": name,
        "type": "line",
        "showSymbol": len(points) < 2,
        "sampling": "minmax",
        "connectNulls": False,
        "lineStyle": {"color": color, "width": width, "opacity": opacity},
        "itemStyle": {"color": color},
        "data": [list(point) for point in points],
    }


PICTURE = Picture("loss", "Loss", losses, height=300)
