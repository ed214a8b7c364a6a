"""The task stream of a pool, live: the browser gets the whole picture once, and then what is new.

the watcher's rows ──▶ what is new since the last tick ──▶ bars ──▶ browser, which drops what has left the window
zoom ──▶ stands still ──▶ the bars of that part, in its own resolution
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from nicegui import ui
from nicegui.events import GenericEventArguments

from ropewalk.control.view import ProcessView
from ropewalk.page.browser import call_browser
from ropewalk.page.chart import Chart
from ropewalk.page.frame import Panel, Visit
from ropewalk.page.pictures.stream import PICTURE, RUNNING, WINDOW_S, StreamWindow
from ropewalk.page.task_bars import MOST_BARS, Task
from ropewalk.page.watcher import Seen

_WINDOWS = {10: "10 s", 30: "30 s", 120: "2 min", 600: "10 min"}
_ZOOM = "Ctrl and wheel, the bar, or + and - zoom; zoomed, it stands still."
_ANEW_S = 120.0
"""The whole picture is made anew this often: rows, colours and resolution fit what is there now."""
_SETTLED_S = 10.0
"""For this long it stays, unless there are new workers or functions."""
_ROW_PX = 13
_LEAST_PX = 220
_MOST_PX = 760


class StreamPanel:
    """The panel. Make it where it stands; `show` sends what is new.

    Args:
        seen: what is known when the page is opened.
        visit: for its colours and its clock.
    """

    def __init__(self, seen: Seen, visit: Visit) -> None:
        self._visit = visit
        self._style = visit.style
        self._window_s = WINDOW_S
        self._live = True
        self._drawn_at = -_ANEW_S
        self._num_bars = 0
        self._last: Task | None = None
        self._seen = seen
        height = _height(seen)
        self._stream = StreamWindow(0.0, 0.0, height, live=True)
        with Panel(PICTURE.title, help=PICTURE.help) as card:
            with card.head:
                ui.space()
                self._choice = ui.toggle(_WINDOWS, value=int(WINDOW_S), on_change=lambda e: self._choose(e.value))
                self._choice.props('dense no-caps unelevated size="sm" toggle-color=primary')
                self._button = ui.button("Pause", icon="pause", on_click=self._toggle).props(
                    "flat dense no-caps size=sm"
                )
                self._button.style("min-width: 72px")
            self._chart = Chart(f"{seen.view.name} tasks", height, nothing=PICTURE.nothing, rows=self._rows)
            self._chart.element.on("chart:datazoom", self._zoom, ["start", "end", "batch"], throttle=0.4,
                                   leading_events=False)  # fmt: skip
            self._note = ui.label(_ZOOM).classes("rw-small")

    def show(self, seen: Seen) -> None:
        """Show what is new, unless it stands still."""
        self._seen = seen
        data = seen.panels.get("stream")
        self._note.set_text(self._words(seen))
        if data is None or not self._live:
            return
        tasks = cast("Sequence[Task]", data.get("tasks", ()))
        now = float(data.get("now") or seen.view.at)
        fresh = after(tasks, self._last)
        self._last = tasks[-1] if tasks else None
        running = running_tasks(seen.view.processes, now)
        if now - self._drawn_at >= _ANEW_S or self._must_draw(fresh, now):
            self._draw(data, running, now)
            return
        self._stream.begin, self._stream.end = now - self._window_s, now
        items = self._stream.items(fresh)
        self._num_bars += sum(map(len, items.values()))
        items[RUNNING] = self._stream.running_items(running)
        self._send({"begin": self._stream.begin, "end": now, "items": items, "whole": [RUNNING]})

    def _words(self, seen: Seen) -> str:
        """Return why the window begins without a task, while it does, and else how to zoom."""
        tasks = cast("Sequence[Task]", seen.panels.get("stream", {}).get("tasks", ()))
        if not self._live or not tasks or float(tasks[0][2]) <= seen.view.at - self._window_s:
            return _ZOOM
        return f"Tasks are recorded while this is open: since {self._visit.moment(tasks[0][2])}."

    def _rows(self) -> list[list[object]]:
        """Return all tasks that are known, with the head of a table."""
        tasks = cast("Sequence[Task]", self._seen.panels.get("stream", {}).get("tasks", ()))
        return [["worker", "function", "begin", "end", "tasks", "outcome"], *map(list, tasks)]

    def _must_draw(self, fresh: Sequence[Task], now: float) -> bool:
        """Return whether new tasks do not fit into the picture that the browser has."""
        if not {str(task[0]) for task in fresh} <= set(self._stream.workers):
            return True
        # There is room for few functions, so they make it drawn anew only a few times, and none stays grey meanwhile.
        if self._stream.has_room and not {str(task[1]) for task in fresh} <= set(self._stream.functions):
            return True
        return self._num_bars > 2 * MOST_BARS and now - self._drawn_at >= _SETTLED_S

    def _draw(self, data: Mapping[str, Any], running: Sequence[Task], now: float) -> None:
        self._stream.begin, self._stream.end = now - self._window_s, now
        self._stream.height = _height(self._seen)
        option = self._stream.option({**data, "running": running}, self._style)
        self._drawn_at, self._num_bars = now, 0
        self._chart.keep(option)
        self._send({"option": option, "height": self._stream.height})

    def _choose(self, window_s: float) -> None:
        self._window_s = float(window_s)
        self._go_on()

    def _toggle(self) -> None:
        if self._live:
            self._stand_still()
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._live, self._drawn_at = True, -_ANEW_S
        self._button.set_text("Pause")
        self._button.set_icon("pause")
        self.show(self._seen)

    def _stand_still(self) -> None:
        self._live = False
        self._button.set_text("Live")
        self._button.set_icon("play_arrow")

    def _zoom(self, event: GenericEventArguments) -> None:
        begin, end = zoomed(event.args, self._stream.begin, self._stream.end)
        self._stand_still()
        tasks = cast("Sequence[Task]", self._seen.panels.get("stream", {}).get("tasks", ()))
        self._send({"items": self._stream.items_of(tasks, begin, end), "whole": self._stream.names})

    def _send(self, change: Mapping[str, Any]) -> None:
        call_browser("stream", self._chart.element.id, change)


def _height(seen: Seen) -> int:
    return max(_LEAST_PX, min(_MOST_PX, 100 + _ROW_PX * len(seen.view.processes)))


def after(tasks: Sequence[Task], last: Task | None) -> Sequence[Task]:
    """Return the tasks that follow one, which is known by its identity; all, if it is not among them."""
    for index in range(len(tasks) - 1, -1, -1):
        if tasks[index] is last:
            return tasks[index + 1 :]
    return tasks


def running_tasks(processes: Sequence[ProcessView], now: float) -> list[Task]:
    """Return what processes do now as tasks without an end: `[worker, function, begin]`."""
    return [[process.name, process.doing, now - process.doing_s] for process in processes if process.doing]


def zoomed(args: Mapping[str, Any], begin: float, end: float) -> tuple[float, float]:
    """Return the part of a window that an event of ECharts names by percentages."""
    batch = cast("Sequence[Mapping[str, Any]]", args.get("batch") or [args])
    first, last = (batch[0].get(name) for name in ("start", "end"))
    low = float(first) if isinstance(first, int | float) else 0.0
    high = float(last) if isinstance(last, int | float) else 100.0
    span = end - begin
    return begin + span * low / 100, begin + span * high / 100


__all__ = ["StreamPanel", "after", "running_tasks", "zoomed"]
