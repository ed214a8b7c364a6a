"""The picture of a trainer's memory: for each worker what was planned, and what its stages hold.

Data: see `ropewalk.training.panels.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style
from ropewalk.quantities import shown_size

_PARTS = {"weights": 0, "gradients": 1, "optimizer": 2, "stashed": 4, "buffers": 6, "activations": 5}
"""By part, the number of its colour."""
_REST = "gradients, activations and cache"
_NAMES = {"optimizer": "state of the optimizer", "stashed": "older versions"}
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_LIMIT_IS_NEAR = 4.0
"""A limit is drawn if it is at most this many times the longest bar; else it is only written."""


def memory(data: Mapping[str, Any], style: Style) -> Option:
    """Two stacked bars for each worker: planned and held."""
    workers: Sequence[Mapping[str, Any]] = data.get("workers", ())
    if not workers:
        return {}
    bars = [bar for worker in workers for bar in (worker["planned"] or {}, _held(worker), {})][:-1]
    longest = max((sum(bar.values()) for bar in bars), default=1) or 1
    size, unit = next(one for one in _UNITS if longest >= one[0])
    parts = [name for name in (*_PARTS, _REST) if any(bar.get(name) for bar in bars)]
    return {
        **style.base(),
        "legend": style.legend(left=8),
        "grid": {"left": 176, "right": 32, "top": 36, "bottom": 44},
        "tooltip": {**style.base()["tooltip"], "trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": style.axis(f"memory ({unit})", min=0, nameGap=26),
        "yAxis": _rows(workers, style),
        "series": [
            *(_series(name, [bar.get(name, 0) / size for bar in bars], style) for name in parts),
            *_limits(workers, longest, size, style),
        ],
    }


def _held(worker: Mapping[str, Any]) -> dict[str, float]:
    held = dict(worker["held"])
    if worker["peak_device_bytes"] is not None:
        held[_REST] = max(0, worker["peak_device_bytes"] - sum(held.values()))
    return held


def _series(name: str, values: list[float], style: Style) -> Option:
    colors = style.colors
    color = colors[_PARTS[name]] if name in _PARTS else colors[7]
    return {
        "name": _NAMES.get(name, name),
        "type": "bar",
        "stack": "memory",
        "barCategoryGap": "12%",
        "itemStyle": {"color": color},
        "data": [round(value, 4) for value in values],
    }


def _limits(workers: Sequence[Mapping[str, Any]], longest: float, size: int, style: Style) -> list[Option]:
    limits = [(index, worker["limit_bytes"]) for index, worker in enumerate(workers) if worker["limit_bytes"]]
    points = [
        [round(limit / size, 4), 3 * index + row]
        for index, limit in limits
        if limit <= _LIMIT_IS_NEAR * longest
        for row in (0, 1)
    ]
    if not points:
        return []
    mark = {"name": "limit", "type": "scatter", "symbol": "rect", "symbolSize": [3, 30]}
    return [{**mark, "itemStyle": {"color": style.bad}, "data": points}]


def _rows(workers: Sequence[Mapping[str, Any]], style: Style) -> Option:
    names: list[str] = []
    for worker in workers:
        stages = ", ".join(str(int(stage)) for stage in worker["stages"])
        limit = f" of {shown_size(worker['limit_bytes'])}" if worker["limit_bytes"] else ""
        process = f"process {shown_size(worker['process_bytes'])}"
        if worker["peak_device_bytes"] is not None:
            process = f"peak {shown_size(worker['peak_device_bytes'])}"
        names += [f"stage {stages} ({worker['name']})  planned", f"{process}{limit}  held", ""]
    axis = style.axis(type="category", data=names[:-1], inverse=True)
    return {
        **axis,
        "axisTick": {"show": False},
        "splitLine": {"show": False},
        "axisLabel": {"color": style.text, "interval": 0, "fontSize": 11 if len(workers) <= 6 else 9},
    }


PICTURE = Picture(
    "memory",
    "Memory of stages",
    memory,
    height=340,
    help="Planned above held; gradients and activations are not counted on a CPU.",
)
