"""The picture of a pipeline: for each worker the planned and the measured step, one above the other, on one time axis.

Data: see `ropewalk.training.panels.pipeline`. Bars are thick lines, so that their lengths are times without a function
in JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style, wheel_zoom
from ropewalk.quantities import shown_duration

_HEIGHT, _TOP, _BOTTOM, _LEFT, _RIGHT, _WIDTH = 420, 74, 44, 150, 28, 1100
"""In pixels; the width is that of a usual picture, to know which bars have room for a number."""
_MOST_SHOWN = 12
"""Workers that are shown at once; more can be scrolled."""
_ROWS = 3
"""Rows of a worker: planned, measured, and a gap."""
_KINDS = {
    "F": ("forward", 0),
    "C": ("forward again", 5),
    "B": ("backward", 2),
    "I": ("gradient of inputs", 2),
    "W": ("gradient of weights", 6),
    "A": ("sum of gradients", 4),
    "U": ("update", 1),
    "S": ("send", 3),
    "R": ("receive", 7),
}
"""By letter of an action, its name and the number of its colour."""
_COMPUTING = "FCBIW"
_UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def pipeline(data: Mapping[str, Any], style: Style) -> Option:
    """Two rows for each worker: what was planned, and what was measured, with waits as thin lines."""
    if not data.get("measured"):
        return {}
    workers: Sequence[Mapping[str, Any]] = data["workers"]
    length_s = max(row[5] for rows in (data["measured"], data["planned"]) for row in rows)
    _, factor, unit = next(one for one in _UNITS if length_s >= one[0])
    bar = _bar_height(len(workers))
    bars = _Bars(factor, length_s, bar)
    series = [bars.series(_KINDS[kind][0], kind, data, style.colors[_KINDS[kind][1]]) for kind in _kinds_in(data)]
    waits = [bars.wait(row) for row in data["waits"] if row[4] > row[3]]
    if waits:
        series.append(_lines("waits", waits, style.muted, max(2, bar // 6)))
    series.append(bars.numbers(data, style))
    return {
        **style.base(),
        "title": _title(data, style),
        "legend": style.legend(
            top=44, left=8, icon="roundRect", itemWidth=14, data=[one["name"] for one in series[:-1]]
        ),
        "grid": {"left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM},
        "xAxis": style.axis(
            f"time since the step began ({unit})",
            min=0,
            max=factor * length_s,
            nameGap=26,
            axisLabel={"color": style.muted, "showMaxLabel": False},
        ),
        "yAxis": _rows_axis(workers, _planned(data), style),
        "dataZoom": list(_zooms(len(workers), style)),
        "series": series,
    }


def _bar_height(num_workers: int) -> int:
    rows = _ROWS * min(num_workers, _MOST_SHOWN)
    return max(3, min(34, int(0.9 * (_HEIGHT - _TOP - _BOTTOM) / rows)))


def _kinds_in(data: Mapping[str, Any]) -> list[str]:
    found = {row[1] for row in data["measured"]} | {row[1] for row in data["planned"]}
    return [kind for kind in _KINDS if kind in found]


class _Bars:
    """The bars of one picture.

    Args:
        factor: of seconds, for the unit of the axis.
        length_s: of the axis.
        height: of a bar in pixels.
    """

    def __init__(self, factor: float, length_s: float, height: int) -> None:
        self._factor, self._length_s, self._height = factor, length_s, height

    def series(self, name: str, kind: str, data: Mapping[str, Any], color: str) -> Option:
        """All bars of one kind of action, those of the plan paler."""
        rows = [("planned", row) for row in data["planned"]] + [("measured", row) for row in data["measured"]]
        return _lines(name, [self._bar(of, row) for of, row in rows if row[1] == kind], color, self._height)

    def _bar(self, of: str, row: Sequence[Any]) -> Option:
        worker, kind, stage, micro_batch, start_s, end_s = row
        which = "" if micro_batch is None else f" of micro-batch {int(micro_batch)}"
        words = f"{of}: {_KINDS[kind][0]}{which}, stage {int(stage)}: {shown_duration(end_s - start_s)}"
        bar = self._between(_ROWS * int(worker) + (of == "measured"), start_s, end_s, words)
        return {**bar, "lineStyle": {"opacity": 0.45}} if of == "planned" else bar

    def wait(self, row: Sequence[Any]) -> Option:
        """A wait of a worker."""
        worker, cause, stage, start_s, end_s = row
        words = {"starved": "for a tensor", "back-pressure": "for room on a link", "sums": "for sums of gradients"}
        why = words.get(cause, "for the next step")
        whom = "" if stage is None else f" of stage {int(stage)}"
        return self._between(
            _ROWS * int(worker) + 1, start_s, end_s, f"waits {why}{whom}: {shown_duration(end_s - start_s)}"
        )

    def _between(self, row: int, start_s: float, end_s: float, words: str) -> Option:
        end_s -= min((end_s - start_s) / 4, self._length_s / _WIDTH)  # a gap of a pixel, between bars of one colour
        coords = [[round(self._factor * start_s, 6), row], [round(self._factor * end_s, 6), row]]
        return {"coords": coords, "name": words}

    def numbers(self, data: Mapping[str, Any], style: Style) -> Option:
        """The numbers of micro-batches, on bars that have room for them."""
        points = [
            [round(self._factor * (row[4] + row[5]) / 2, 6), _ROWS * int(row[0]) + offset, int(row[3])]
            for offset, rows in enumerate((data["planned"], data["measured"]))
            for row in rows
            if row[1] in _COMPUTING and row[3] is not None and self._has_room(row)
        ]
        label = {"show": True, "position": "inside", "formatter": "{@[2]}", "fontSize": min(11, self._height - 2)}
        return {
            "name": "micro-batch",
            "type": "scatter",
            "symbolSize": 1,
            "silent": True,
            "itemStyle": {"color": "transparent"},
            "label": {**label, "color": "#0d1117" if style.dark else "#ffffff", "fontWeight": "bold"},
            "z": 5,
            "data": points,
        }

    def _has_room(self, row: Sequence[Any]) -> bool:
        digits = len(str(row[3]))
        return self._height >= 10 and (row[5] - row[4]) / self._length_s * _WIDTH > 8 * digits + 4


def _lines(name: str, bars: list[Option], color: str, width: int) -> Option:
    return {
        "name": name,
        "type": "lines",
        "coordinateSystem": "cartesian2d",
        "clip": True,
        "lineStyle": {"width": width, "opacity": 1, "color": color, "cap": "butt"},
        "itemStyle": {"color": color},
        "emphasis": {"disabled": True},
        "data": bars,
    }


def _planned(data: Mapping[str, Any]) -> str:
    return "planned" if data["planned_from"] == "plan" else "ideal"


def _title(data: Mapping[str, Any], style: Style) -> Option:
    planned = _planned(data)
    bottleneck = data["bottleneck"]
    stages = ", ".join(str(int(stage)) for stage in bottleneck["stages"])
    return {
        "text": (
            f"step {shown_duration(data['step_s'])} ({planned} {shown_duration(data['planned_step_s'])})"
            f"     bubble {100 * data['bubble']:.0f} % ({planned} {100 * data['planned_bubble']:.0f} %)"
        ),
        "subtext": (
            f"stage {stages} computes most: {100 * bottleneck['computing']:.0f} % of the time; workers are "
            f"{100 * data['idle']:.0f} % idle; {data['schedule']}, {int(data['micro_batches'])} micro-batches in a step"
        ),
        "left": 8,
        "top": 0,
        "itemGap": 8,
        "textStyle": {"fontSize": 13, "fontWeight": "bold", "color": style.text},
        "subtextStyle": {"fontSize": 12, "color": style.muted},
    }


def _rows_axis(workers: Sequence[Mapping[str, Any]], planned: str, style: Style) -> Option:
    names: list[str] = []
    for worker in workers:
        stages = ", ".join(str(int(stage)) for stage in worker["stages"])
        several = sum(other["stages"] == worker["stages"] for other in workers) > 1
        stage = f"stage {stages}" + (f" ({worker['name']})" if several else "")
        names += [f"{stage}  {planned}", "measured", ""]
    axis = style.axis(type="category", data=names[:-1], inverse=True)
    return {
        **axis,
        "axisTick": {"show": False},
        "splitLine": {"show": False},
        "axisLabel": {"color": style.text, "interval": 0, "fontSize": 12 if len(workers) <= 8 else 10},
    }


def _zooms(num_workers: int, style: Style) -> Iterator[Option]:
    yield wheel_zoom(xAxisIndex=0, filterMode="none")
    if num_workers > _MOST_SHOWN:
        yield {
            "type": "slider",
            "yAxisIndex": 0,
            "filterMode": "none",
            "right": 4,
            "width": 14,
            "startValue": 0,
            "endValue": _ROWS * _MOST_SHOWN - 2,
            "showDetail": False,
            "brushSelect": False,
            "borderColor": style.line,
        }


PICTURE = Picture(
    "pipeline",
    "Pipeline",
    pipeline,
    height=_HEIGHT,
    help="The last step: planned, or ideal with the measured times, above measured. Ctrl and the wheel zoom.",
    wide=True,
    waiting="no step is done",
)
