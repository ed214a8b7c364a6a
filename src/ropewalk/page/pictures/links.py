"""The picture of the links of a trainer: bytes of a step from worker to worker, planned and measured.

Data: see `ropewalk.training.panels.links`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_MOST = 16


def links(data: Mapping[str, Any], style: Style) -> Option:
    """Two bars for each link; the busiest 16."""
    found: Mapping[str, Mapping[str, Any]] = data.get("links", {})
    if not found:
        return {}
    names = sorted(sorted(found, key=lambda name: -found[name]["step_bytes"])[:_MOST])
    largest = max(max(found[name]["step_bytes"], found[name]["planned_step_bytes"] or 0) for name in names)
    size, unit = next((one for one in _UNITS if largest >= one[0]), _UNITS[-1])
    colors = style.colors
    series = [_bars("measured", [found[name]["step_bytes"] / size for name in names], colors[0])]
    if any(found[name]["planned_step_bytes"] for name in names):
        planned = [(found[name]["planned_step_bytes"] or 0) / size for name in names]
        series.insert(0, _bars("planned", planned, colors[7]))
    return {
        **style.base(),
        "legend": style.legend(left=8),
        "grid": {"left": 96, "right": 32, "top": 36, "bottom": 44},
        "tooltip": {**style.base()["tooltip"], "trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": style.axis(f"bytes of a step ({unit})", min=0, nameGap=26),
        "yAxis": {
            **style.axis(type="category", data=names, inverse=True),
            "axisTick": {"show": False},
            "axisLabel": {"color": style.text, "interval": 0},
        },
        "series": series,
    }


def _bars(name: str, values: list[float], color: str) -> Option:
    return {
        "name": name,
        "type": "bar",
        "barMaxWidth": 26,
        "itemStyle": {"color": color},
        "data": [round(value, 4) for value in values],
    }


PICTURE = Picture("links", "Links between workers", links, height=300, waiting="no step is done")
