"""Lines that several pictures share: bands between two lines, and grids below each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.page.style import Option, Style

_SHADES = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
"""Viridis, from low to high: its brightness rises evenly, so that it reads without colours as well.

Source: S. van der Walt, N. Smith, A Better Default Colormap for Matplotlib, 2015.
"""
_ON_DARK = ("#75559b", "#5a6bb0", "#4079ab", *_SHADES[3:])
"""The same with a lighter low end, which would not be seen on a dark background."""


def shades(style: Style) -> list[str]:
    """Return the colours of a scale, from low to high."""
    return list(_ON_DARK if style.dark else _SHADES)


def colour_bar(words: str, low: float, high: float, style: Style, **more: Any) -> Option:
    """Return the scale of colours beside a picture, which maps values to them.

    Args:
        words: above it.
        low: the value of the first colour.
        high: of the last one; a scale of one value is given a width.
        style: the theme.
        more: options of ECharts' `visualMap`, such as the dimension of the values.
    """
    return {
        "min": low,
        "max": high if high > low else low + 1.0,
        "calculable": True,
        "right": 4,
        "top": "middle",
        "text": [words, ""],
        "textStyle": {"color": style.muted},
        "inRange": {"color": shades(style)},
        **more,
    }


def band(
    name: str, xs: Sequence[Any], lows: Sequence[Any], highs: Sequence[Any], color: str, opacity: float
) -> list[Option]:
    """Return the series of an area between two lines, which no tooltip shows.

    Args:
        name: unique in the picture; with that of a line, the legend switches both.
        xs: of the points.
        lows: the lower line; None leaves a gap.
        highs: the upper line.
        color: of the area.
        opacity: of the area, 0 to 1.
    """
    rows = [
        (x, low, None if low is None or high is None else high - low)
        for x, low, high in zip(xs, lows, highs, strict=True)
    ]
    common: Option = {
        "type": "line",
        "stack": f"band {name}",
        "stackStrategy": "all",
        "symbol": "none",
        "silent": True,
        "itemStyle": {"color": color, "opacity": opacity},
        "lineStyle": {"opacity": 0},
        "tooltip": {"show": False},
    }
    return [
        {**common, "name": name, "data": [[x, low] for x, low, _ in rows]},
        {
            **common,
            "name": name,
            "data": [[x, rise] for x, _, rise in rows],
            "areaStyle": {"color": color, "opacity": opacity},
        },
    ]


def rows_of_grids(num: int, *, top: int = 44, height: int, gap: int, left: int = 72) -> list[Option]:
    """Return grids below each other, all of one height in pixels."""
    return [{"left": left, "right": 24, "top": top + row * (height + gap), "height": height} for row in range(num)]


def shade(value: float | None, low: float, high: float, style: Style) -> str:
    """Return the colour of a value on the scale from `low` to `high`; that of muted text for None."""
    if value is None:
        return style.muted
    scale = shades(style)
    share = (value - low) / (high - low) if high > low else 1.0
    at = min(max(share, 0.0), 1.0) * (len(scale) - 1)
    first = min(int(at), len(scale) - 2)
    one, other = (_channels(scale[place]) for place in (first, first + 1))
    mixed = [round(a + (b - a) * (at - first)) for a, b in zip(one, other, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


__all__ = ["band", "colour_bar", "rows_of_grids", "shade", "shades"]
