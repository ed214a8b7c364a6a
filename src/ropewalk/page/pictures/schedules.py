"""The picture of the panel "schedules": scores and hyperparameters of all members of a population over steps.

    score  ╱╌╌╌            thin: every interval of every member; a triangle where a member copied another one
          ╱━━━━━━          thick: the way of the best state
    rate  ━━┓╌╌┗━━━        a row for each hyperparameter that changes

As figure 4 of Jaderberg et al.: Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846).
Data: see `ropewalk.population.panels.schedules.schedules_panel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import rows_of_grids
from ropewalk.page.style import Option, Style, wheel_zoom
from ropewalk.quantities import wants_log_axis

_SPACE, _GAP, _MOST_ROWS = 440, 34, 4
"""Pixels of all rows with the gaps between them, and of a gap."""
_MOST_INTERVALS = 1200
"""Intervals that are drawn; of more, one of a fixed number of each member is, and the way of the best state whole."""
Span = Mapping[str, Any]
"""An interval of the panel."""


def schedules(data: Mapping[str, Any], style: Style) -> Option:
    """A row for the score and one for each hyperparameter that changes, at most four in all."""
    all_spans: Sequence[Span] = data["intervals"]
    if not all_spans:
        return {}
    spans, step = thinned(all_spans)
    words = f"one of {step} intervals of each member is drawn" if step > 1 else ""
    names = [name for name in spans[0]["values"] if len({str(span["values"].get(name)) for span in spans}) > 1]
    rows = ["score", *names][:_MOST_ROWS]
    best = _best_way(all_spans)
    series: list[Option] = []
    for row, name in enumerate(rows):
        series += _row(row, name, spans, best, style)
    last = len(rows) - 1
    height = (_SPACE - _GAP * last) // len(rows)
    axis = {"min": 0, "max": "dataMax", "splitLine": {"show": False}}
    return {
        **style.base(),
        **({"title": {**style.words(words), "top": 26}} if words else {}),
        "legend": style.legend(data=["all members", "way of the best state", "copied another member"]),
        "grid": rows_of_grids(len(rows), height=height, gap=_GAP, left=88),
        "xAxis": [
            style.axis("steps" if row == last else "", gridIndex=row, nameGap=26, **axis) for row in range(len(rows))
        ],
        "yAxis": [_values(row, name, spans, style) for row, name in enumerate(rows)],
        "dataZoom": [wheel_zoom(xAxisIndex=list(range(len(rows))))],
        "series": series,
    }


def thinned(spans: Sequence[Span]) -> tuple[Sequence[Span], int]:
    """Return the intervals that are drawn, the last of each member among them, and of how many each is one."""
    step = -(-len(spans) // _MOST_INTERVALS)
    if step == 1:
        return spans, 1
    later: dict[int, int] = {}
    kept: list[Span] = []
    for span in reversed(spans):
        number = later.get(span["member"], 0)
        later[span["member"]] = number + 1
        if number % step == 0:
            kept.append(span)
    return kept[::-1], step


def _row(row: int, name: str, spans: Sequence[Span], best: Sequence[Span], style: Style) -> list[Option]:
    common: Option = {"xAxisIndex": row, "yAxisIndex": row, "dimensions": ["step", name, "member"]}
    common |= {"encode": {"x": 0, "y": 1, "tooltip": [2, 0, 1]}}
    line = {**common, "type": "line", "showSymbol": False, "symbolSize": 4}
    members = sorted({span["member"] for span in spans})
    all_points: list[list[Any]] = []
    for member in members:
        all_points += [*_line(name, [span for span in spans if span["member"] == member]), [None, None, None]]
    jumps = [span for span in spans if span["donor"] >= 0]
    return [
        {
            **line,
            "name": "all members",
            "data": all_points,
            "itemStyle": {"color": style.muted},
            "lineStyle": {"color": style.muted, "width": 1, "opacity": 0.55},
            "z": 2,
        },
        {
            **line,
            "name": "way of the best state",
            "data": _line(name, best, is_path=True),
            "itemStyle": {"color": style.colors[0]},
            "lineStyle": {"color": style.colors[0], "width": 2.5},
            "z": 4,
        },
        {
            **common,
            "name": "copied another member",
            "type": "scatter",
            "symbol": "triangle",
            "symbolSize": 7,
            "data": [[*_point(name, span, at_end=name == "score"), span["member"]] for span in jumps],
            "itemStyle": {"color": style.colors[1], "opacity": 0.9},
            "z": 3,
        },
    ]


def _line(name: str, spans: Sequence[Span], *, is_path: bool = False) -> list[list[Any]]:
    """Return the points of a line, with gaps where a member goes on from the state of another one."""
    points: list[list[Any]] = []
    for span in spans:
        if span["donor"] >= 0 and not is_path:
            points.append([None, None, None])
        if name != "score":
            points.append([span["start"], _value(name, span), span["member"]])
        points.append([span["end"], _value(name, span), span["member"]])
    return points


def _point(name: str, span: Span, *, at_end: bool) -> list[Any]:
    return [span["end" if at_end else "start"], _value(name, span)]


def _value(name: str, span: Span) -> Any:
    value = span["score"] if name == "score" else span["values"].get(name)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value if value is None else str(value)
    return float(f"{value:.5g}")


def _values(row: int, name: str, spans: Sequence[Span], style: Style) -> Option:
    values = [value for span in spans if (value := _value(name, span)) is not None]
    axis = style.axis(name, gridIndex=row, nameGap=56, scale=True, splitNumber=3)
    if any(isinstance(value, str) for value in values):
        kinds = sorted({str(value) for value in values})
        return {**axis, "type": "category", "data": kinds}
    if name != "score" and wants_log_axis(values):
        return {**axis, "type": "log"}
    return axis


def _best_way(spans: Sequence[Span]) -> list[Span]:
    """Return the intervals in which the best state of now was trained, from the first to the last."""
    newest = {span["member"]: span for span in spans if span["score"] is not None}
    ends = {(span["member"], span["end"]): place for place, span in enumerate(spans)}
    if not newest:
        return []
    span = max(newest.values(), key=lambda each: each["score"])
    way = [span]
    place = next(at for at in reversed(range(len(spans))) if spans[at] is span)
    while span["start"] > 0:
        owner = span["donor"] if span["donor"] >= 0 else span["member"]
        found = (
            next(
                (
                    at
                    for at in reversed(range(place))
                    if spans[at]["member"] == owner and spans[at]["end"] == span["start"]
                ),
                None,
            )
            if (owner, span["start"]) in ends
            else None
        )
        if found is None:
            break
        place, span = found, spans[found]
        way.append(span)
    return way[::-1]


PICTURE = Picture(
    "schedules",
    "Schedules",
    schedules,
    height=44 + _SPACE + 52,
    help="How hyperparameters change while the members train; the way of the best state is the schedule to use again.",
    wide=True,
    waiting="no member has changed",
)
