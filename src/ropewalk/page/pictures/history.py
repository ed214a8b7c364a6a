"""The picture of a search's history: the value of each trial, and the best until then.

Data: `{"metric": name, "mode": "max" or "min", "trials": [[number, value or null, state], ...]}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.style import Option, Style


def history(data: Mapping[str, Any], style: Style) -> Option:
    """A point for each trial that has reported a value, and a line with the best so far."""
    trials = [(n, v, state) for n, v, state in data.get("trials", ()) if v is not None and math.isfinite(v)]
    if not trials:
        return {}
    best, so_far = float(trials[0][1]), list[list[float]]()
    for number, value, _ in trials:
        best = max(best, value) if data["mode"] == "max" else min(best, value)
        so_far.append([number, best])
    ended = [[n, v] for n, v, state in trials if state not in ("running", "waiting", "paused")]
    open_ones = [[n, v] for n, v, state in trials if state in ("running", "waiting", "paused")]
    return {
        **style.base(),
        "grid": {"left": 64, "right": 20, "top": 34, "bottom": 40},
        "legend": style.legend(right=56, left=8),
        "tooltip": {**style.base()["tooltip"], "trigger": "item"},
        "xAxis": style.axis("trial", minInterval=1, nameGap=24),
        "yAxis": style.axis(escaped(data["metric"]), scale=True, nameGap=46),
        "series": [
            _points("ended", ended, style.colors[0], style),
            _points("not yet ended", open_ones, style.warn, style),
            {"type": "line", "step": "end", "name": "best so far", "data": so_far, "showSymbol": False,
             "lineStyle": {"width": 2}, "itemStyle": {"color": style.colors[3]}, "z": 3},
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
