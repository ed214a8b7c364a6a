"""The picture of the versions of a trainer's weights: which of them each stage holds, and for which micro-batches.

Data: see `ropewalk.training.panels.versions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style
from ropewalk.quantities import counted, shown_size

_HEIGHT = 300


def versions(data: Mapping[str, Any], style: Style) -> Option:
    """A box for each version of each stage, with the number of micro-batches that hold it."""
    stages: Sequence[Mapping[str, Any]] = data.get("stages", ())
    found = [version for stage in stages for version in stage["versions"]]
    if not found:
        return {}
    first, last = min(found), max(found)
    newest: list[list[int]] = []
    stashed: list[list[int]] = []
    for row, stage in enumerate(stages):
        for version in stage["versions"]:
            held = int(stage["held"].get(str(version), 0))
            (newest if version == stage["versions"][-1] else stashed).append([version, row, held])
    size = [max(8, min(54, 620 // (last - first + 2))), max(6, min(30, 180 // len(stages)))]
    colors = style.colors
    return {
        **style.base(),
        "title": _title(stages, style),
        "legend": style.legend(top=26, left=8),
        "grid": {"left": 176, "right": 40, "top": 60, "bottom": 44},
        "xAxis": style.axis(
            "version of the weights (number of updates)", min=first - 1, max=last + 1, minInterval=1, nameGap=26
        ),
        "yAxis": _rows(stages, style),
        "series": [
            _boxes("newest", newest, colors[0], size, style),
            *([_boxes("older, still needed", stashed, colors[1], size, style)] if stashed else []),
        ],
    }


def _boxes(name: str, points: list[list[int]], color: str, size: list[int], style: Style) -> Option:
    held = {"show": True, "position": "inside", "formatter": "{@[2]}", "color": "#0d1117" if style.dark else "#ffffff"}
    return {
        "name": name,
        "type": "scatter",
        "symbol": "roundRect",
        "symbolSize": size,
        "itemStyle": {"color": color},
        "label": {**held, "fontWeight": "bold"},
        "encode": {"x": 0, "y": 1, "tooltip": [0, 2]},
        "dimensions": ["version", "stage", "micro-batches in flight"],
        "data": points,
    }


def _title(stages: Sequence[Mapping[str, Any]], style: Style) -> Option:
    extra = sum(len(stage["versions"]) - 1 for stage in stages)
    stashed = sum(stage["stashed_bytes"] for stage in stages)
    text = f"{counted(extra, 'older version')}, {shown_size(stashed)}; in each box the micro-batches that hold it"
    return {"text": text, "left": 8, "top": 2, "textStyle": {"fontSize": 12, "color": style.muted}}


def _rows(stages: Sequence[Mapping[str, Any]], style: Style) -> Option:
    names = [
        f"stage {int(stage['stage'])} ({stage['worker']})  {len(stage['versions'])} of {int(stage['slots'])}"
        for stage in stages
    ]
    axis = style.axis(type="category", data=names, inverse=True)
    return {**axis, "axisTick": {"show": False}, "axisLabel": {"color": style.text, "interval": 0}}


PICTURE = Picture("versions", "Versions of weights", versions, height=_HEIGHT, waiting="no step is done")
