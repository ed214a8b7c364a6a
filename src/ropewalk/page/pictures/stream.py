"""The picture of a task stream, as Dask has it: a row for each worker, a bar for each task.

Data: `{"now": s, "tasks": [[worker, function, begin, end, number, "ok" | "failed" | "died"], ...], "running": [[worker,
function, begin], ...]}`, with Unix times in seconds; "running" may be missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ropewalk.escaping import escaped
from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style, wheel_zoom
from ropewalk.page.task_bars import Bar, Task, fitting_bars, main_functions, within
from ropewalk.quantities import counted, shown_duration

WINDOW_S = 30.0
"""Seconds that are shown unless another window is chosen."""
OTHERS = "other functions"
RUNNING = "running now"
FAILED = "failed"
DIED = "worker died"
_MOST_FUNCTIONS = 6
_WIDTH_PX = 1100
_HEIGHT = 340
_AROUND_PX = 96
"""Pixels above and below the rows: legend, axis and zoom."""
_MOST_RUNNING = 2000
_LONGEST = 18
"""Characters of a worker's name that are shown."""


@dataclass(slots=True)
class StreamWindow:
    """What is drawn of a task stream: window, rows and colours, which stay while a page shows it.

    Attributes:
        begin: of the window; Unix time in seconds.
        end: of the window.
        height: of the picture in pixels.
        workers: the rows, from the top.
        functions: those with a colour of their own.
        narrow_s: tasks shorter than this are joined.
        live: whether it is drawn again every second: faster, without tooltips of its own.
    """

    begin: float
    end: float
    height: int = _HEIGHT
    workers: list[str] = field(default_factory=list[str])
    functions: list[str] = field(default_factory=list[str])
    narrow_s: float = 0.0
    live: bool = False

    @property
    def has_room(self) -> bool:
        """Whether another function can have a colour of its own."""
        return len(self.functions) < _MOST_FUNCTIONS

    @property
    def names(self) -> list[str]:
        """Of the series that hold tasks which have ended."""
        return [*self.functions, OTHERS, FAILED, DIED]

    def option(self, data: Mapping[str, Any], style: Style) -> Option:
        """Return the whole picture of the window."""
        tasks = within(cast("Sequence[Task]", data.get("tasks", ())), self.begin, self.end)
        running = _running(data)
        self.workers = sorted({str(task[0]) for task in [*tasks, *running]}, key=natural)
        chosen = main_functions(tasks, _MOST_FUNCTIONS)
        self.functions = [*(name for name in self.functions if name in chosen), *(
            name for name in chosen if name not in self.functions)]  # fmt: skip
        others = [OTHERS] if any(str(task[1]) not in self.functions for task in tasks) else []
        found, self.narrow_s = fitting_bars(tasks, (self.end - self.begin) / _WIDTH_PX)
        return {
            **style.base(),
            "legend": style.legend(data=[*self.functions, *others, RUNNING, FAILED, DIED], right=70),
            "tooltip": {**style.base()["tooltip"], "formatter": "{b}", "show": not self.live},
            "grid": {"left": 8, "right": 32, "top": 36, "bottom": 52, "containLabel": True},
            "xAxis": style.axis(
                type="time", min=self.begin * 1e3, max=self.end * 1e3, splitLine={"show": False},
                axisLabel={"color": style.muted, "hideOverlap": True, "formatter": "{HH}:{mm}:{ss}"},
            ),
            "yAxis": style.axis(
                type="category", data=[_ending(escaped(worker)) for worker in self.workers], inverse=True,
                axisTick={"show": False}, splitLine={"show": False},
                axisLabel={"color": style.muted, "fontSize": 10, "width": 110, "overflow": "truncate",
                           "interval": math.ceil(12 * len(self.workers) / (self.height - _AROUND_PX)) - 1},
            ),
            "dataZoom": [
                {"type": "slider", "height": 16, "bottom": 6, "filterMode": "none", "brushSelect": False,
                 "showDataShadow": False, "borderColor": style.line, "textStyle": {"color": style.muted},
                 "labelFormatter": ""},
                wheel_zoom(filterMode="none"),
            ],
            "series": self._series(found, running, style),
        }  # fmt: skip

    def items(self, tasks: Sequence[Task]) -> dict[str, list[dict[str, Any]]]:
        """Return the items that new tasks add, by the name of their series."""
        found, _ = fitting_bars(tasks, self.narrow_s)
        return self._items(found)

    def items_of(self, tasks: Sequence[Task], begin: float, end: float) -> dict[str, list[dict[str, Any]]]:
        """Return the items of a part of the window, in the resolution that fits it."""
        found, _ = fitting_bars(within(tasks, begin, end), (end - begin) / _WIDTH_PX)
        return self._items(found)

    def running_items(self, running: Sequence[Task]) -> list[dict[str, Any]]:
        """Return the items of tasks that run, from their begin to the end of the window."""
        rows = {worker: row for row, worker in enumerate(self.workers)}
        return [
            _item(f"{escaped(str(task[1]))} on {escaped(str(task[0]))}, running for "
                  f"{shown_duration(max(0.0, self.end - task[2]))}",
                  max(self.begin, float(task[2])), self.end, rows[str(task[0])])
            for task in running if str(task[0]) in rows
        ]  # fmt: skip

    def _series(self, found: Sequence[Bar], running: Sequence[Task], style: Style) -> list[Option]:
        items = self._items(found)
        width = max(1.0, min(18.0, 0.8 * (self.height - _AROUND_PX) / max(1, len(self.workers))))
        palette = [color for index, color in enumerate(style.colors) if index not in (3, 7)]  # bad, and grey
        colors = {name: palette[index % len(palette)] for index, name in enumerate(self.functions)}
        lines = [
            _lines(name, items.get(name, []), color, width, large=self.live)
            for name, color in [*colors.items(), (OTHERS, style.colors[7])]
        ]
        shown = _lines(RUNNING, self.running_items(running), style.muted, width, large=self.live)
        shown["lineStyle"]["opacity"] = 0.35
        marks = [
            _marks(FAILED, items.get(FAILED, []), "triangle", style.bad, width, style),
            _marks(DIED, items.get(DIED, []), "diamond", style.bad, width, style),
        ]
        return [*lines, shown, *marks]

    def _items(self, found: Sequence[Bar]) -> dict[str, list[dict[str, Any]]]:
        items: dict[str, list[dict[str, Any]]] = {}
        rows = {worker: row for row, worker in enumerate(self.workers)}
        own = set(self.functions)
        for bar in found:
            row = rows.get(bar.worker)
            if row is None:
                continue
            words = _words(bar)
            begin, end = max(bar.begin, self.begin), max(bar.end, bar.begin + 0.7 * self.narrow_s)
            items.setdefault(bar.function if bar.function in own else OTHERS, []).append(_item(words, begin, end, row))
            for name, number in ((FAILED, bar.failed), (DIED, bar.died)):
                if number:
                    items.setdefault(name, []).append({"name": words, "value": [round(bar.end * 1e3), row]})
        return items


def stream(data: Mapping[str, Any], style: Style) -> Option:
    """The last `WINDOW_S` seconds of a task stream; gaps in a row are seconds in which the worker had nothing to do."""
    tasks = cast("Sequence[Task]", data.get("tasks", ()))
    if not tasks and not data.get("running"):
        return {}
    now = float(data.get("now") or max(float(task[3]) for task in tasks))
    return StreamWindow(now - WINDOW_S, now).option(data, style)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts worker.2 before worker.10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part)


def _ending(name: str) -> str:
    """Return a name without the begin of a long one: its end tells it from those of other workers."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _running(data: Mapping[str, Any]) -> list[Task]:
    return list(cast("Sequence[Task]", data.get("running", ())))[:_MOST_RUNNING]


def _words(bar: Bar) -> str:
    function, worker = escaped(bar.function), escaped(bar.worker)
    if bar.tasks == 1:
        ended = "; failed" if bar.failed else "; the worker died" if bar.died else ""
        return f"{function}, {worker}: {shown_duration(bar.end - bar.begin)}{ended}"
    bad = f"; {bar.failed} failed" if bar.failed else ""
    bad += f"; {bar.died} lost with the worker" if bar.died else ""
    span = bar.end - bar.begin
    busy = f", {100 * min(1.0, bar.busy_s / span):.0f} % busy" if span > 0 else ""
    return f"{function}, {worker}: {counted(bar.tasks, 'task')} in {shown_duration(span)}{busy}{bad}"


def _item(words: str, begin: float, end: float, row: int) -> dict[str, Any]:
    return {"name": words, "coords": [[round(begin * 1e3, 1), row], [round(end * 1e3, 1), row]]}


def _lines(name: str, items: list[dict[str, Any]], color: str, width: float, *, large: bool) -> Option:
    return {
        "type": "lines",
        "name": name,
        "coordinateSystem": "cartesian2d",
        "clip": True,
        "progressive": 0,  # in parts, what is drawn last would be missing whenever new tasks come before it is drawn
        # One path for all bars is drawn 4 times faster; ECharts 6.1 has no tooltip for it, and fails on an empty one.
        "large": large,
        "largeThreshold": 1,
        "lineStyle": {"color": color, "width": width, "opacity": 1, "cap": "butt"},
        "itemStyle": {"color": color},
        "data": items,
    }


def _marks(name: str, items: list[dict[str, Any]], symbol: str, color: str, width: float, style: Style) -> Option:
    return {
        "type": "scatter",
        "name": name,
        "symbol": symbol,
        "symbolSize": max(8.0, min(14.0, width)),
        "itemStyle": {"color": color, "borderColor": style.background, "borderWidth": 1},
        "data": items,
        "z": 4,
    }


PICTURE = Picture(
    "stream", "Task stream", stream, height=_HEIGHT, wide=True,
    help="A row for each worker, a bar for each task in the colour of its function; gaps are idle",
    waiting="no task has run since this is open",
)  # fmt: skip
