"""The picture of the rungs of successive halving: which trials stand on them, and which were promoted.

Data: `{"metric": name, "mode": "max" or "min", "rungs": [{"bracket": b, "budget": steps, "trials": [[number, value,
was_promoted], ...]}, ...]}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.pictures.far_out import BEYOND, without_far_out
from ropewalk.page.style import Option, Style


def rungs(data: Mapping[str, Any], style: Style) -> Option:
    """A column for each rung with a point for each of its trials; lines lead from rung to rung of promoted trials."""
    found: Sequence[Mapping[str, Any]] = data.get("rungs", ())
    if not found:
        return {}
    several = len({rung["bracket"] for rung in found}) > 1
    labels = [_label(rung, several) for rung in found]
    promoted, others = list[Option](), list[Option]()
    for at, rung in enumerate(found):
        for number, value, was_promoted in rung["trials"]:
            if value is not None and math.isfinite(value):
                point = {"name": f"trial {number}", "value": [at, float(f"{value:.6g}"), number]}
                (promoted if was_promoted else others).append(point)
    paths = _paths(found)
    known = [(point["value"][0], point["value"][1], point["name"]) for point in (*promoted, *others)]
    ends, beyond = without_far_out(known, data["mode"], style) if known else ({}, [])
    return {
        **style.base(),
        "grid": {"left": 64, "right": 20, "top": 34, "bottom": 64},
        "legend": style.legend(data=["promoted", "not promoted", *([BEYOND] if beyond else [])], right=56, left=8),
        "tooltip": {**style.base()["tooltip"], "trigger": "item"},
        "xAxis": style.axis("rung, and how many of its trials were promoted", type="category", data=labels, nameGap=44,
                            splitLine={"show": False},
                            axisLabel={"color": style.muted, "interval": 0, "lineHeight": 15}),
        "yAxis": style.axis(escaped(data["metric"]), scale=True, nameGap=46, **ends),
        "series": [
            {"type": "lines", "coordinateSystem": "cartesian2d", "polyline": True, "silent": True, "z": 1,
             "lineStyle": {"color": style.good, "width": 1, "opacity": 0.35}, "data": [{"coords": p} for p in paths]},
            {"type": "scatter", "name": "not promoted", "data": others, "symbolSize": 8, "symbol": "circle",
             "itemStyle": {"color": "transparent", "borderColor": style.muted, "borderWidth": 1.5}},
            {"type": "scatter", "name": "promoted", "data": promoted, "symbolSize": 9,
             "itemStyle": {"color": style.good}},
            *beyond,
        ],
    }  # fmt: skip


def _label(rung: Mapping[str, Any], several: bool) -> str:
    num = len(rung["trials"])
    num_promoted = sum(bool(was_promoted) for _, _, was_promoted in rung["trials"])
    bracket = f"bracket {rung['bracket']}, " if several else ""
    return f"{bracket}step {rung['budget']:g}\n{num_promoted} of {num}"


def _paths(found: Sequence[Mapping[str, Any]]) -> list[list[list[float]]]:
    """Return the way of each promoted trial through its rungs."""
    ways: dict[int, list[list[float]]] = {}
    for at, rung in enumerate(found):
        for number, value, _ in rung["trials"]:
            if value is not None and math.isfinite(value):
                ways.setdefault(number, []).append([at, value])
    return [way for way in ways.values() if len(way) > 1]


__all__ = ["rungs"]
