"""The picture of the panel "trials": the curves of the trials of a search, and the rungs at which they wait.

Data: see `ropewalk.search.view.trials_panel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.far_out import without_far_out
from ropewalk.page.style import Option, Style, state_color, wheel_zoom
from ropewalk.quantities import wants_log_axis


def trials(data: Mapping[str, Any], style: Style) -> Option:
    """A line for each of the trials that run or are the best, and a vertical line at each rung."""
    rows: Sequence[Mapping[str, Any]] = data["trials"]
    shown = [row for row in rows if row["curve"]]
    if not shown:
        return {}
    sign = 1 if data["mode"] == "max" else -1
    scored = [row for row in rows if row["best"] is not None]
    best = max(scored, key=lambda row: sign * row["best"])["number"] if scored else None
    is_log = wants_log_axis(step for row in shown for step, _ in row["curve"])
    series = [_curve(row, best, style) for row in shown]
    series[0]["markLine"] = _rungs(data["rungs"], style)
    points = [(step, value, f"trial {row['number']}") for row in shown for step, value in row["curve"]]
    ends, beyond = without_far_out(points, data["mode"], style)
    series += beyond
    axis: Option = {"type": "log"} if is_log else {"min": 0}
    return {
        **style.base(),
        "legend": style.legend(data=list(dict.fromkeys(str(each["name"]) for each in series))),
        "grid": {"left": 72, "right": 32, "top": 56, "bottom": 48},
        "xAxis": style.axis("steps", splitLine={"show": False}, **axis),
        "yAxis": style.axis(str(data["metric"]), scale=True, nameGap=50, **ends),
        "dataZoom": [wheel_zoom()],
        "series": series,
    }


def _curve(row: Mapping[str, Any], best: int | None, style: Style) -> Option:
    is_best, state = row["number"] == best, str(row["state"])
    color = style.colors[1] if is_best else style.colors[0] if state == "running" else state_color(state, style)
    color = color if is_best or state in ("running", "failed") else style.muted
    return {
        "name": f"best: trial {row['number']}" if is_best else state,
        "type": "line",
        "dimensions": ["step", "value", "trial"],
        "encode": {"x": 0, "y": 1, "tooltip": [2, 0, 1]},
        "data": [[step, value, row["number"]] for step, value in row["curve"]],
        "showSymbol": len(row["curve"]) == 1,
        "symbolSize": 5,
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": 3 if is_best else 1.5, "opacity": 1.0 if is_best else 0.7},
        "z": 4 if is_best else 3 if state == "running" else 2,
    }


def _rungs(rungs: Sequence[Mapping[str, Any]], style: Style) -> Option:
    """Return a line for each budget: how many trials came there, and how many of them went on."""
    budgets: dict[float, list[int]] = {}
    for rung in rungs:
        counts = budgets.setdefault(rung["budget"], [0, 0])
        counts[0] += rung["entered"]
        counts[1] += rung["promoted"]
    return {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": style.line if not style.dark else style.muted, "type": "dashed"},
        "label": {"color": style.muted, "position": "end", "align": "left", "fontSize": 11},
        "data": [
            {"xAxis": budget, "label": {"formatter": f"{entered} → {promoted}"}}
            for budget, (entered, promoted) in sorted(budgets.items())
            if entered
        ],
    }


PICTURE = Picture(
    "trials",
    "Trials",
    trials,
    height=320,
    help="Curves of the trials that run and the best ones; dashed lines are the budgets at which trials are compared, "
    "with the number of trials that came there, and of those that went on.",
    wide=True,
    waiting="no trial has reported",
)
