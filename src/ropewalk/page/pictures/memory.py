"""The picture of a trainer's memory: for each worker what was planned, and what its stages hold.

Data: see `ropewalk.training.panels.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style
from ropewalk.quantities import shown_size

_PARTS = {"weights": 0, "gradients": 1, "optimizer": 2, "stashed": 4, "buffers": 6, "activations": 5}
"""By part, the number of its colour."""
_REST = "others"
_NAMES = {"stashed": "older versions"}
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_LIMIT_IS_NEAR = 4.0
"""A limit is drawn if it is at most this many times the longest bar; else it is only written."""


class _Row(NamedTuple):
    label: str
    parts: Mapping[str, float]
    limit_bytes: int | None


def memory(data: Mapping[str, Any], style: Style) -> Option:
    """Two stacked bars for each worker: planned and held; one if no plan says what is needed."""
    workers: Sequence[Mapping[str, Any]] = data.get("workers", ())
    if not workers:
        return {}
    rows = _rows(workers)
    longest = max(sum(row.parts.values()) for row in rows) or 1
    size, unit = next(one for one in _UNITS if longest >= one[0])
    parts = [name for name in (*_PARTS, _REST) if any(row.parts.get(name) for row in rows)]
    names = style.axis(type="category", data=[row.label for row in rows], inverse=True)
    label = {"color": style.text, "interval": 0, "fontSize": 11 if len(rows) <= 18 else 9}
    return {
        **style.base(),
        "legend": style.legend(left=8),
        "grid": {"left": 184, "right": 32, "top": 36, "bottom": 44},
        "tooltip": {**style.base()["tooltip"], "trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": style.axis(f"memory ({unit})", min=0, nameGap=26),
        "yAxis": {**names, "axisTick": {"show": False}, "splitLine": {"show": False}, "axisLabel": label},
        "series": [
            *(_series(name, [row.parts.get(name, 0) / size for row in rows], style) for name in parts),
            *_limits(rows, longest, size, style),
        ],
    }


def _rows(workers: Sequence[Mapping[str, Any]]) -> list[_Row]:
    is_planned = any(worker["planned"] for worker in workers)
    rows: list[_Row] = []
    for worker in workers:
        stage = f"stage {', '.join(str(int(stage)) for stage in worker['stages'])} ({worker['name']})"
        peak_bytes, limit_bytes = worker["peak_device_bytes"], worker["limit_bytes"]
        whole = (
            f"process {shown_size(worker['process_bytes'])}" if peak_bytes is None else f"peak {shown_size(peak_bytes)}"
        )
        limit = f" of {shown_size(limit_bytes)}" if limit_bytes else ""
        if is_planned:
            rows.append(_Row(f"{stage}  planned", worker["planned"] or {}, limit_bytes))
            rows.append(_Row(f"{whole}{limit}  held", _held(worker), limit_bytes))
            rows.append(_Row("", {}, None))
        else:
            rows.append(_Row(f"{stage}  {whole}{limit}", _held(worker), limit_bytes))
    return rows[:-1] if is_planned else rows


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


def _limits(rows: Sequence[_Row], longest: float, size: int, style: Style) -> list[Option]:
    points = [
        [round(row.limit_bytes / size, 4), index]
        for index, row in enumerate(rows)
        if row.limit_bytes and row.limit_bytes <= _LIMIT_IS_NEAR * longest
    ]
    if not points:
        return []
    mark = {"name": "limit", "type": "scatter", "symbol": "rect", "symbolSize": [3, 30]}
    return [{**mark, "itemStyle": {"color": style.bad}, "data": points}]


PICTURE = Picture(
    "memory",
    "Memory of stages",
    memory,
    height=340,
    help="Planned above held. Others: gradients, activations and cache, which are not known on a CPU.",
    waiting="no step is done",
)
