"""The picture of the panel "returns": how good a policy is over environment steps.

Data: see `ropewalk.rl.view.returns_panel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import band
from ropewalk.page.style import Option, Style, wheel_zoom


def returns(data: Mapping[str, Any], style: Style) -> Option:
    """A line for training, and one for evaluations in a band from their worst to their best episode."""
    training = [[x, y] for x, y in zip(data["steps"], data["score"], strict=True) if y is not None]
    evaluations: Sequence[Mapping[str, Any]] = sorted(data["evaluations"], key=lambda each: each["steps"])
    if not training and not evaluations:
        return {}
    blue, orange = style.colors[:2]
    xs, means, worst, best = ([each[name] for each in evaluations] for name in ("steps", "mean", "worst", "best"))
    series: list[Option] = [
        *(band("worst to best episode", xs, worst, best, orange, 0.18) if evaluations else []),
        {**_line("training, mean of 100 episodes", blue), "data": training, "showSymbol": len(training) == 1},
    ]
    if evaluations:
        points = {"data": list(map(list, zip(xs, means, strict=True))), "symbolSize": 5, "showSymbol": len(xs) <= 100}
        series.append({**_line("evaluation, without exploration", orange), **points})
    if data.get("stop_at") is not None:
        series[-1]["markLine"] = _level(data["stop_at"], "ends at", style)
    return {
        **style.base(),
        "tooltip": {**style.base()["tooltip"], "trigger": "axis"},
        "legend": style.legend(data=list(dict.fromkeys(str(each["name"]) for each in series))),
        "grid": {"left": 72, "right": 32, "top": 40, "bottom": 48},
        "xAxis": style.axis("environment steps", min=0, splitLine={"show": False}),
        "yAxis": style.axis("return of an episode", scale=True, nameGap=48),
        "dataZoom": [wheel_zoom()],
        "series": series,
    }


def _line(name: str, color: str) -> Option:
    return {
        "name": name,
        "type": "line",
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": 2},
        "z": 3,
    }


def _level(value: float, words: str, style: Style) -> Option:
    return {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": style.muted, "type": "dashed"},
        "label": {"formatter": f"{words} {value:g}", "position": "insideStartTop", "color": style.muted},
        "data": [{"yAxis": value}],
    }


PICTURE = Picture(
    "returns",
    "Returns",
    returns,
    help="Returns are sums of rewards without discount. Training explores, so that evaluations are usually better.",
    wide=True,
    waiting="no episode has ended",
)
