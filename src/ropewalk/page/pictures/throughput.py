"""The picture of the panel "throughput": how fast actors step environments, and learners learn.

Data: see `ropewalk.rl.view.throughput_panel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import rows_of_grids
from ropewalk.page.style import Option, Style, wheel_zoom

_ROWS = {
    "env_steps_per_s": "env steps/s",
    "updates_per_s": "updates/s",
    "samples_per_s": "samples/s",
}
_HEIGHT, _GAP = 72, 26
_MOST_CHARACTERS = 110


def throughput(data: Mapping[str, Any], style: Style) -> Option:
    """Three rows over one time axis, each from 0."""
    if not data["seconds"]:
        return {}
    seconds = {"min": "dataMin", "max": "dataMax", "splitLine": {"show": False}}
    labels = {"color": style.muted, "showMinLabel": False, "showMaxLabel": False}
    return {
        **style.base(),
        "title": {**style.words(str(data["bound"])[:_MOST_CHARACTERS])},
        "tooltip": {**style.base()["tooltip"], "trigger": "axis"},
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "grid": rows_of_grids(len(_ROWS), top=36, height=_HEIGHT, gap=_GAP, left=96),
        "xAxis": [
            style.axis(words, gridIndex=row, nameGap=26, axisLabel=labels, **seconds)
            for row, words in enumerate(["", "", "time since the start (s)"])
        ],
        "yAxis": [
            style.axis(words, gridIndex=row, min=0, splitNumber=2, nameGap=54)
            for row, words in enumerate(_ROWS.values())
        ],
        "dataZoom": [wheel_zoom(xAxisIndex=list(range(len(_ROWS))))],
        "series": [
            {
                "name": words,
                "type": "line",
                "xAxisIndex": row,
                "yAxisIndex": row,
                "showSymbol": len(data["seconds"]) == 1,
                "itemStyle": {"color": style.colors[row]},
                "lineStyle": {"color": style.colors[row], "width": 1.5},
                "areaStyle": {"color": style.colors[row], "opacity": 0.1},
                "data": [[x, y] for x, y in zip(data["seconds"], data[name], strict=True)],
            }
            for row, (name, words) in enumerate(_ROWS.items())
        ],
    }


PICTURE = Picture(
    "throughput",
    "Throughput",
    throughput,
    height=36 + len(_ROWS) * (_HEIGHT + _GAP) + 30,
    help="Above: what actors collect. Below: what learners make of it. The line on top says which side waits.",
    wide=True,
    waiting="nothing was collected",
)
