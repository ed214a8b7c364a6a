"""The picture of a trainer's loss: each step, a mean over the last steps, and the norm of the gradients if it is known.

Data: see `ropewalk.training.panels.losses`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.curves import curves
from ropewalk.page.style import Option, Style

_MOST_SMOOTHING, _MEANS = 0.95, 20
"""Of the exponential mean, corrected for its begin (D. P. Kingma, J. Ba, Adam, 2015, section 3). It covers the last of
this number of parts of all steps: the mean of few steps over 20 of them would lie far above a loss that falls."""


def losses(data: Mapping[str, Any], style: Style) -> Option:
    """A pale line of all steps, and a strong one of their exponential mean."""
    steps: Sequence[int] = data.get("step", ())
    norms: Sequence[float | None] = data.get("gradient_norm", ())
    if not steps:
        return {}
    raw = _points(steps, data["loss"])
    line = {"name": "loss", "color": 0, "points": _points(steps, smoothed(data["loss"])), "raw": raw}
    option = curves({"metric": "loss", "x": "step", "lines": [line]}, style)
    has_norms = any(norm is not None for norm in norms)
    axes = [style.axis("loss", scale=True, nameGap=46)]
    if has_norms:
        norm_line = {"name": "norm of gradients", "color": 3, "points": _points(steps, norms)}
        (series,) = curves({"lines": [norm_line]}, style)["series"]
        option["series"].append({**series, "yAxisIndex": 1})
        axes.append(style.axis("norm of gradients", nameGap=46, position="right", splitLine={"show": False}))
    return {
        **option,
        "legend": style.legend(left=8, data=["loss", "norm of gradients"][: 1 + has_norms]),
        "grid": {"left": 72, "right": 72 if has_norms else 24, "top": 36, "bottom": 44},
        "xAxis": style.axis("step", min="dataMin", max="dataMax", minInterval=1, nameGap=26),
        "yAxis": axes,
    }


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Return the exponential mean up to each value; gaps stay gaps."""
    smoothing = min(_MOST_SMOOTHING, max(0.0, 1 - _MEANS / max(1, len(values))))
    mean, weight = 0.0, 0.0
    found: list[float | None] = []
    for value in values:
        if value is None:
            found.append(None)
            continue
        mean = smoothing * mean + (1 - smoothing) * value
        weight = smoothing * weight + (1 - smoothing)
        found.append(mean / weight)
    return found


def _points(steps: Sequence[int], values: Sequence[float | None]) -> list[tuple[int, float]]:
    return [(step, math.nan if value is None else value) for step, value in zip(steps, values, strict=True)]


PICTURE = Picture("loss", "Loss", losses, height=300, waiting="no step is done")
