"""The picture of two objectives: every trial, and the front of those that no other one surpasses in both.

Data: `{"metrics": [first, second], "trials": [[number, first, second], ...], "front": [number, ...]}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.style import Option, Style


def pareto(data: Mapping[str, Any], style: Style) -> Option:
    """A point for each trial, and the front as a line."""
    trials = [trial for trial in data.get("trials", ()) if all(map(math.isfinite, trial[1:3]))]
    if not trials:
        return {}
    chosen = set(data["front"])
    points = [_point(trial) for trial in trials if trial[0] not in chosen]
    front = sorted((_point(trial) for trial in trials if trial[0] in chosen), key=lambda point: point["value"][0])
    first, second = map(escaped, data["metrics"])
    return {
        **style.base(),
        "grid": {"left": 64, "right": 20, "top": 34, "bottom": 40},
        "legend": style.legend(right=56, left=8),
        "tooltip": {**style.base()["tooltip"], "trigger": "item"},
        "xAxis": style.axis(first, scale=True, nameGap=24),
        "yAxis": style.axis(second, scale=True, nameGap=46),
        "series": [
            {"type": "scatter", "name": "other trials", "data": points, "symbolSize": 7,
             "itemStyle": {"color": style.muted, "opacity": 0.6}},
            {"type": "line", "name": "Pareto front", "data": front, "symbol": "circle", "symbolSize": 9,
             "lineStyle": {"width": 1.5}, "itemStyle": {"color": style.colors[3]}},
        ],
    }  # fmt: skip


def _point(trial: list[float]) -> Option:
    return {"name": f"trial {trial[0]}", "value": [float(f"{value:.6g}") for value in trial[1:3]]}


__all__ = ["pareto"]
