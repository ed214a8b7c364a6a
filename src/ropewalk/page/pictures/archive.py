"""The picture of the panel "archive": the elites of a quality-diversity archive as a heat map.

Data: see `ropewalk.population.panels.archive.ArchivePanel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import SHADES
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
    return {
        **style.base(),
        "title": {"text": words, "left": "center", "top": 6, "textStyle": {"color": style.muted, "fontSize": 12}},
        "grid": {"left": 64, "right": 96, "top": 36, "bottom": 52},
        "xAxis": _bins(axes[0], style),
        "yAxis": _bins(axes[1], style, nameGap=44) if is_map else style.axis("fitness", scale=True, nameGap=44),
        "visualMap": {
            "min": low,
            "max": high if high > low else low + 1.0,
            "dimension": 2 if is_map else 1,
            "calculable": True,
            "precision": _digits(low, high),
            "orient": "vertical",
            "right": 4,
            "top": "middle",
            "text": ["fitness", ""],
            "textStyle": {"color": style.muted},
            "inRange": {"color": SHADES},
        },
        "series": [series],
    }


def _bins(axis: Mapping[str, Any], style: Style, **more: Any) -> Option:
    """Return an axis whose categories are the middles of bins."""
    num, low, high = int(axis["bins"]), float(axis["low"]), float(axis["high"])
    step = (high - low) / num
    middles = [f"{low + (place + 0.5) * step:.3g}" for place in range(num)]
    lines = {"splitLine": {"show": False}, "splitArea": {"show": False}}
    return style.axis(str(axis["name"]), **{"type": "category", "data": middles, "nameGap": 30, **lines, **more})


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
)
