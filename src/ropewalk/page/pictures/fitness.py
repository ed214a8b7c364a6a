"""The picture of the panel "fitness": the spread of the fitness by generation.

Data: see `ropewalk.population.panels.fitness.fitness_panel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import band
from ropewalk.page.style import Option, Style, wheel_zoom

_MOST_GENERATIONS = 500
"""Points of a line; of more generations, each point stands for several, with the worst and the best of them all."""
Column = Sequence[float | None]


def fitness(data: Mapping[str, Any], style: Style) -> Option:
    """Bands from the worst to the best and between the quartiles, with the median, and the best so far as a line."""
    data = thinned(data)
    xs = data["generation"]
    if not xs:
        return {}
    blue, orange, green = style.colors[:3]
    lines = [("best", blue, "dotted", 1.0), ("median", blue, "solid", 2.0), ("worst", blue, "dotted", 1.0)]
    lines += [("best so far", green, "solid", 1.5), ("test", orange, "solid", 2.0)]
    series: list[Option] = [
        *band("quartiles", xs, data["lower_quartile"], data["upper_quartile"], blue, 0.35),
        *band("worst to best", xs, data["worst"], data["best"], blue, 0.12),
    ]
    for name, color, kind, width in lines:
        ys = data[name.replace(" ", "_")]
        if any(y is not None for y in ys):
            series.append(
                {
                    "name": name,
                    "type": "line",
                    "data": [[x, y] for x, y in zip(xs, ys, strict=True)],
                    "showSymbol": name == "test" and len(xs) <= 100,
                    "symbolSize": 5,
                    "connectNulls": name == "test",
                    "itemStyle": {"color": color},
                    "lineStyle": {"color": color, "type": kind, "width": width},
                }
            )
    names = list(dict.fromkeys(str(each["name"]) for each in reversed(series)))
    return {
        **style.base(),
        "tooltip": {**style.base()["tooltip"], "trigger": "axis"},
        "legend": style.legend(data=names),
        "xAxis": style.axis(
            "generation",
            minInterval=1,
            min="dataMin",
            max="dataMax",
            splitLine={"show": False},
            axisLine={"onZero": False, "lineStyle": {"color": style.muted}},
        ),
        "yAxis": style.axis("fitness", scale=True, nameGap=46),
        "dataZoom": [wheel_zoom()],
        "series": series,
    }


def thinned(data: Mapping[str, Any], most: int = _MOST_GENERATIONS) -> dict[str, Column]:
    """Return the columns of the panel, thinned to `most` rows, with values of six digits; the last generation stays.

    Args:
        data: of the panel.
        most: rows.
    """
    columns: dict[str, Column] = {name: column for name, column in data.items() if name != "cursor"}
    step = -(-len(columns["generation"]) // most) or 1
    chosen: dict[str, Callable[[Sequence[float]], float]] = {"worst": min, "best": max}
    return {name: _thinned(column, step, chosen.get(name, lambda ys: ys[-1])) for name, column in columns.items()}


def _thinned(column: Column, step: int, choose: Callable[[Sequence[float]], float]) -> Column:
    ends = range(len(column), 0, -step)[::-1]
    groups = ([y for y in column[max(0, end - step) : end] if y is not None] for end in ends)
    return [_rounded(choose(ys)) if ys else None for ys in groups]


def _rounded(y: float) -> float:
    return y if isinstance(y, int) else float(f"{y:.6g}")


PICTURE = Picture(
    "fitness",
    "Fitness",
    fitness,
    help="Half of a generation lies in the darker band. A band that closes early means that diversity is lost.",
    wide=True,
    waiting="no generation is done",
)
