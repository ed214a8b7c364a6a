"""The picture of the panel "archive": the elites of a quality-diversity archive as a heat map.

Data: see `ropewalk.population.panels.archive.ArchivePanel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import colour_bar
from ropewalk.page.style import Option, Style


def archive(data: Mapping[str, Any], style: Style) -> Option:
    """Each bin of behaviour in the colour of its elite's fitness; bars, if behaviours have one component."""
    values: Sequence[Sequence[float]] = data["values"]
    if not values:
        return {}
    axes: Sequence[Mapping[str, Any]] = data["axes"]
    fitnesses = [value for _, _, value in values]
    low, high = min(fitnesses), max(fitnesses)
    words = f"{data['elites']:,} of {data['niches']:,} niches ({data['coverage']:.0%})"
    if data["qd_score"] is not None:
        words += f", QD score {data['qd_score']:,.4g}"
    if data["folded"]:
        words += f"; the best over {data['folded']} further components"
    is_map = len(axes) > 1
    series: Option = {
        "name": "fitness",
        "type": "heatmap" if is_map else "bar",
        "data": [[x, y, value] if is_map else [x, value] for x, y, value in values],
    }
    second = _bins(axes[1], style, "left") if is_map else [style.axis("fitness", scale=True, nameGap=48)]
    return {
        **style.base(),
        "title": style.words(words),
        "grid": {"left": 72, "right": 112, "top": 36, "bottom": 52},
        "xAxis": _bins(axes[0], style, "bottom"),
        "yAxis": second,
        "visualMap": colour_bar(
            "fitness", low, high, style, dimension=2 if is_map else 1, precision=_digits(low, high)
        ),
        "series": [series],
    }


def _bins(axis: Mapping[str, Any], style: Style, position: str) -> list[Option]:
    """Return an axis of bins, which is not seen, and one with the numbers of behaviour beside it."""
    num, low, high = int(axis["bins"]), float(axis["low"]), float(axis["high"])
    middles = [f"{low + (place + 0.5) * (high - low) / num:.3g}" for place in range(num)]
    ends = {"min": low, "max": high, "splitLine": {"show": False}}
    line = {"onZero": False, "lineStyle": {"color": style.muted}}
    numbers = style.axis(str(axis["name"]), position=position, axisLine=line, **ends)
    return [
        {"type": "category", "data": middles, "show": False},
        {**numbers, "nameGap": 30 if position == "bottom" else 44},
    ]


def _digits(low: float, high: float) -> int:
    """Return the decimals with which values between two differ in the third place."""
    span = high - low
    return next((digits for digits in range(7) if span * 10**digits >= 100), 7) if span > 0 else 2


PICTURE = Picture(
    "archive",
    "Archive",
    archive,
    height=420,
    help="Each cell is a kind of behaviour, in the colour of the best solution that behaves so; empty cells have none.",
    waiting="no generation is done",
)
