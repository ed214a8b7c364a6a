"""The picture of an exchange of gradients: bytes of a step before and after compression, and the error kept back.

Data: see `ropewalk.training.panels.exchange`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style
from ropewalk.quantities import shown_size

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def exchange(data: Mapping[str, Any], style: Style) -> Option:
    """Two lines on a logarithmic axis, and the norm of the error on an axis of its own."""
    rows: Sequence[Sequence[float]] = data.get("rows", ())
    if not rows:
        return {}
    largest = max(max(row[2], row[3]) for row in rows)
    size, unit = next(one for one in _UNITS if largest >= one[0])
    has_error = any(row[4] for row in rows)
    colors = style.colors
    lines = [
        _line("before compression", [[row[1], row[3] / size] for row in rows if row[3] > 0], colors[7], dashed=True),
        _line("sent", [[row[1], row[2] / size] for row in rows if row[2] > 0], colors[0]),
    ]
    axes = [style.axis(f"bytes of a step ({unit})", type="log", nameGap=46)]
    if has_error:
        lines.append({**_line("error kept back", [[row[1], row[4]] for row in rows], colors[3]), "yAxisIndex": 1})
        axes.append(style.axis("norm of the error", nameGap=46, position="right", splitLine={"show": False}))
    return {
        **style.base(),
        "title": _title(rows[-1], style),
        "legend": style.legend(top=26, left=8),
        "grid": {"left": 72, "right": 72 if has_error else 24, "top": 60, "bottom": 44},
        "tooltip": {**style.base()["tooltip"], "trigger": "axis"},
        "xAxis": style.axis("step", min="dataMin", max="dataMax", minInterval=1, nameGap=26),
        "yAxis": axes,
        "series": lines,
    }


def _line(name: str, points: list[list[float]], color: str, *, dashed: bool = False) -> Option:
    return {
        "name": name,
        "type": "line",
        "showSymbol": len(points) < 40,
        "symbolSize": 5,
        "lineStyle": {"color": color, "width": 2, "type": "dashed" if dashed else "solid"},
        "itemStyle": {"color": color},
        "data": points,
    }


def _title(last: Sequence[float], style: Style) -> Option:
    text = f"{shown_size(last[2])} sent in a step"
    if last[3] > 0:
        text += f", {100 * last[2] / last[3]:.3g} % of {shown_size(last[3])} before compression"
    return {"text": text, "left": 8, "top": 2, "textStyle": {"fontSize": 13, "color": style.text}}


PICTURE = Picture(
    "exchange",
    "Exchange of gradients",
    exchange,
    height=320,
    help="Before compression: what a dense ring all-reduce would send.",
    waiting="no gradients were exchanged",
)
