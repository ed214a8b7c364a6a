"""The picture of a search's history: the value of each trial, and the best until then.

Data: `{"metric": name, "mode": "max" or "min", "trials": [[number, value or null, state], ...]}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.pictures.far_out import without_far_out
from ropewalk.page.style import Option, Style

_GROUPS = {"running": "under way", "waiting": "under way", "paused": "paused", "not promoted": "not promoted"}
"""What trials are called that have not ended by themselves."""


def history(data: Mapping[str, Any], style: Style) -> Option:
    """A point for each trial that has reported a value, and a line with the best so far."""
    trials = [(n, v, state) for n, v, state in data.get("trials", ()) if v is not None and math.isfinite(v)]
    if not trials:
        return {}
    best, so_far = float(trials[0][1]), list[list[float]]()
    for number, value, _ in trials:
        best = max(best, value) if data["mode"] == "max" else min(best, value)
        so_far.append([number, best])
    groups: dict[str, list[list[float]]] = {}
    for number, value, state in trials:
        groups.setdefault(_GROUPS.get(state, "ended"), []).append([number, value])
    ends, beyond = without_far_out([(n, v, f"trial {n}") for n, v, _ in trials], data["mode"], style)
    colors = {"ended": style.colors[0], "not promoted": style.muted, "paused": style.muted, "under way": style.warn}
    return {
        **style.base(),
        "grid": {"left": 64, "right": 20, "top": 34, "bottom": 40},
        "legend": style.legend(right=56, left=8),
        "tooltip": {**style.base()["tooltip"], "trigger": "item"},
        "xAxis": style.axis("trial", minInterval=1, nameGap=24),
        "yAxis": style.axis(escaped(data["metric"]), scale=True, nameGap=46, **ends),
        "series": [
            *(_points(name, groups[name], color, style) for name, color in colors.items() if name in groups),
            {"type": "line", "step": "end", "name": "best so far", "data": so_far, "showSymbol": False,
             "lineStyle": {"width": 2}, "itemStyle": {"color": style.colors[3]}, "z": 3},
            *beyond,
        ],
    }  # fmt: skip


def _points(name: str, points: list[list[float]], color: str, style: Style) -> Option:
    return {
        "type": "scatter",
        "name": name,
        "data": points,
        "symbolSize": 7,
        "itemStyle": {"color": color, "opacity": 0.75, "borderColor": style.background, "borderWidth": 0.5},
    }


__all__ = ["history"]
