"""The picture of the panel "staleness": how old the weights were with which each actor collected.

Data: see `ropewalk.rl.view.staleness_panel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import colour_bar
from ropewalk.page.style import Option, Style

_MOST_LABELS, _MOST_LEVEL = 120, 6
"""Cells that have their share as text, and bins whose words are written level."""


def staleness(data: Mapping[str, Any], style: Style) -> Option:
    """A row for each actor, whose cells are the shares of its blocks by lag; without actors, the lag of batches."""
    actors: Sequence[Mapping[str, Any]] = data["actors"]
    unit, batches = str(data["unit"]), data["batches"]
    words = ""
    if batches["mean"] is not None:
        words = f"items of the last batch: {batches['mean']:,.1f} {unit} on average, {batches['max']:,.0f} at most"
    if not actors or not data["edges"]:
        return _batches(batches, unit, style) if batches["mean"] is not None else {}
    totals = [max(1, sum(actor["counts"])) for actor in actors]
    cells = [
        [lag, row, round(100 * count / totals[row], 1)]
        for row, actor in enumerate(actors)
        for lag, count in enumerate(actor["counts"])
        if count
    ]
    dropped = sum(actor["dropped"] for actor in actors)
    words += f"; {dropped:,} blocks dropped" if dropped else ""
    labels = {"color": style.muted, "interval": 0, "rotate": 45 if len(data["edges"]) > _MOST_LEVEL else 0}
    return {
        **style.base(),
        "title": style.words(words),
        "grid": {"left": 64, "right": 100, "top": 36, "bottom": 64},
        "xAxis": style.axis(
            f"lag of a block ({unit})", type="category", data=_bins(data["edges"]), nameGap=44, axisLabel=labels
        ),
        "yAxis": style.axis(
            "actor",
            type="category",
            data=[str(actor["actor"]) for actor in actors],
            inverse=True,
            nameGap=36,
        ),
        "visualMap": colour_bar("% of blocks", 0, 100, style),
        "series": [
            {
                "name": "% of blocks",
                "type": "heatmap",
                "data": cells,
                "label": {"show": len(cells) <= _MOST_LABELS, "fontSize": 11},
                "itemStyle": {"borderColor": style.background, "borderWidth": 1},
            }
        ],
    }


def _bins(edges: Sequence[int]) -> list[str]:
    """Return the words of bins, from each edge to the one before the next."""
    ends = [*(edge - 1 for edge in edges[1:]), None]
    words: list[str] = []
    for first, last in zip(edges, ends, strict=True):
        if last is None and first > 2:
            last = 2 * (first - 1)
        words.append(str(first) if last is None or last == first else f"{first}–{last}")
    return words


def _batches(batches: Mapping[str, Any], unit: str, style: Style) -> Option:
    return {
        **style.base(),
        "grid": {"left": 96, "right": 64, "top": 24, "bottom": 52},
        "xAxis": style.axis(f"lag of the items of the last batch ({unit})", min=0, minInterval=1, nameGap=30),
        "yAxis": style.axis("", type="category", data=["mean", "largest"], inverse=True),
        "series": [
            {
                "name": f"lag ({unit})",
                "type": "bar",
                "barMaxWidth": 28,
                "label": {"show": True, "position": "right", "color": style.text},
                "data": [round(batches["mean"], 2), batches["max"]],
            }
        ],
    }


PICTURE = Picture(
    "staleness",
    "Staleness",
    staleness,
    help="By how much the weights of an actor were behind the newest ones when its block came. A row far to the right "
    "is an actor that is too slow.",
    waiting="no block has come",
)
