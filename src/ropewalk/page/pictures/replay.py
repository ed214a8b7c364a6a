"""The picture of the panel "replay": how full the tables are, and how often an item is sampled.

Data: see `ropewalk.rl.view.replay_panel`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import rows_of_grids
from ropewalk.page.style import Option, Style, wheel_zoom

_HEIGHT, _GAP = 104, 40


def replay(data: Mapping[str, Any], style: Style) -> Option:
    """Above the items of each table under its capacity, below the samples per insert with the limiter's target."""
    points: Sequence[Mapping[str, Any]] = data["points"]
    if not points:
        return {}
    tables: Mapping[str, Mapping[str, Any]] = data["tables"]
    names = list(dict.fromkeys(str(point["table"]) for point in points))
    series: list[Option] = []
    for number, name in enumerate(names):
        own, facts = [point for point in points if point["table"] == name], tables.get(name, {})
        color = style.colors[number % len(style.colors)]
        sizes = [[point["seconds"], point["size"]] for point in own]
        ratios = [[point["seconds"], point["samples_per_insert"]] for point in own]
        series.append({**_line(name, 0, color), "data": sizes, **_level(facts.get("max_size"), "capacity", color)})
        series.append({**_line(name, 1, color), "data": ratios, **_level(facts.get("target"), "target", color)})
    seconds = {"min": "dataMin", "max": "dataMax", "splitLine": {"show": False}}
    labels = {"color": style.muted, "showMinLabel": False, "showMaxLabel": False}
    return {
        **style.base(),
        "tooltip": {**style.base()["tooltip"], "trigger": "axis"},
        "legend": style.legend(data=names),
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "grid": rows_of_grids(2, top=52, height=_HEIGHT, gap=_GAP, left=84),
        "xAxis": [
            style.axis(words, gridIndex=row, nameGap=26, axisLabel=labels, **seconds)
            for row, words in enumerate(("", "time since the start (s)"))
        ],
        "yAxis": [
            style.axis(
                "items", gridIndex=0, min=0, max=_top(points, tables, "size", "max_size"), nameGap=58, splitNumber=3
            ),
            style.axis(
                "samples per insert",
                gridIndex=1,
                min=0,
                max=_top(points, tables, "samples_per_insert", "target"),
                nameGap=50,
                splitNumber=3,
            ),
        ],
        "dataZoom": [wheel_zoom(xAxisIndex=[0, 1])],
        "series": series,
    }


def _line(name: str, row: int, color: str) -> Option:
    return {
        "name": name,
        "type": "line",
        "xAxisIndex": row,
        "yAxisIndex": row,
        "showSymbol": False,
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": 2},
    }


def _level(value: float | None, words: str, color: str) -> Option:
    """Return a dashed line at a value; nothing for None."""
    if value is None:
        return {}
    return {
        "markLine": {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": color, "type": "dashed", "opacity": 0.8},
            "label": {"formatter": f"{words} {value:,g}", "position": "insideStartTop", "color": color},
            "data": [{"yAxis": value}],
        }
    }


def _top(
    points: Sequence[Mapping[str, Any]], tables: Mapping[str, Mapping[str, Any]], value: str, level: str
) -> float | None:
    """Return the end of an axis that has the levels as well as the values."""
    known = [point[value] for point in points if point[value] is not None]
    known += [facts[level] for facts in tables.values() if facts.get(level) is not None]
    if not known or max(known) <= 0:
        return None
    step = 10.0 ** (math.floor(math.log10(max(known))) - 1)
    return float(f"{math.ceil(1.15 * max(known) / step) * step:.3g}")


PICTURE = Picture(
    "replay",
    "Replay",
    replay,
    height=52 + 2 * _HEIGHT + _GAP + 52,
    help="Far above its target, the learner sees the same items too often; far below, experience is left unused.",
    waiting="nothing was inserted",
)
