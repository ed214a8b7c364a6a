"""The report of something that runs, or ran until now: its view, with the pictures that the page shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ropewalk.control.facts import shown_facts
from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.html_table import Cell, StateCell
from ropewalk.page.pictures import pictures_of
from ropewalk.page.pictures.stream import StreamWindow
from ropewalk.page.pictures.timeline import PICTURE as TIMELINE
from ropewalk.page.pictures.timeline import timeline
from ropewalk.page.process_rows import without_subject
from ropewalk.page.report_document import ReportChart, ReportDocument, ReportTable, ReportText
from ropewalk.page.style import Option, Style
from ropewalk.page.watcher import Seen
from ropewalk.quantities import shown_duration, shown_moment, shown_size
from ropewalk.version import VERSION

_Drawing = Callable[[Mapping[str, Any], Style], Option]

_STREAM = "stream"
_PROCESS_HEAD = (
    "process", "group", "state", "host", "pid", "done", "waiting", "cpu", "memory", "silent", "up", "restarts", "doing",
    "last end",
)  # fmt: skip


_NUMBERS = frozenset({"pid", "done", "waiting", "cpu", "memory", "silent", "up", "restarts"})


def view_document(seen: Seen, now: float, recorded: tuple[float, float] | None = None) -> ReportDocument:
    """Return the report of a view.

    Args:
        seen: the view, the data of its panels, and whether it still runs.
        now: Unix time in seconds.
        recorded: the Unix times between which it was recorded, for a block; None: until now, as far as is known.
    """
    view = seen.view
    run = [("run", view.run)] if view.run else []
    progress = [] if view.progress is None else [("progress", f"{100 * view.progress:.0f} %")]
    block = [("recorded", shown_duration(recorded[1] - recorded[0]))] if recorded else []
    lasted = "ran for" if seen.gone or view.has_ended else "running for"
    facts = [
        ("began", shown_moment(view.started)),
        (lasted, shown_duration(round(max(0.0, view.at - view.started), 1))),
        ("launcher", f"pid {view.pid}"), *run, *progress, *block, *shown_facts(view.facts),
    ]  # fmt: skip
    state = "ended" if seen.gone and not view.has_ended else view.state
    parts: list[ReportChart | ReportTable | ReportText] = [
        *panel_charts(view.offers, seen.panels, recorded),
        _processes(view.processes),
    ]
    if view.events:
        parts += [_timeline(view), _events(view.events)]
    failure = "\n".join(filter(None, (view.last_failure, seen.problem)))
    return ReportDocument(view.name, view.kind, state, facts, failure, made_at(now), parts)


def made_at(now: float) -> str:
    """Return the last line of a report."""
    return f"made at {shown_moment(now)} by Ropewalk {VERSION}"


def panel_charts(
    offers: tuple[str, ...],
    panels: Mapping[str, Mapping[str, Any]],
    recorded: tuple[float, float] | None = None,
) -> list[ReportChart]:
    """Return the pictures of panels, in the order in which a page shows them.

    Args:
        offers: names of the panels that a view offers.
        panels: their data, as far as it is there.
        recorded: as for `view_document`.
    """
    charts: list[ReportChart] = []
    for picture in pictures_of(offers):
        data = panels.get(picture.panel)
        if data is None:
            continue
        draw = _whole_stream(recorded) if picture.panel == _STREAM else picture.option
        charts.append(ReportChart(picture.title, _with(draw, data), picture.height, picture.help, picture.wide))
    return charts


def _with(draw: _Drawing, data: Mapping[str, Any]) -> Callable[[Style], Option]:
    return lambda style: draw(data, style)


def _whole_stream(recorded: tuple[float, float] | None) -> _Drawing:
    """Return what draws a task stream from its first task on, or the part of a block; a page shows the last seconds."""

    def option(data: Mapping[str, Any], style: Style) -> Option:
        first_s = recorded[0] if recorded else 0.0
        tasks = [task for task in data.get("tasks", ()) if float(task[3]) >= first_s]
        running = list(data.get("running", ()))
        if not tasks and not running:
            return {}
        begin = min(float(task[2]) for task in (*tasks, *running))
        end = float(data.get("now") or max(float(task[3]) for task in tasks))
        margin_s = 0.01 * max(end - begin, 1e-3)
        return StreamWindow(begin - margin_s, end + margin_s).option({**data, "tasks": tasks}, style)

    return option


def _processes(processes: tuple[ProcessView, ...]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            one.name, one.group, StateCell(f"{one.state}, slow" if one.straggler else one.state), one.host,
            str(one.pid or ""), f"{one.done:,}" if one.is_counted else "", str(one.waiting or ""),
            _duration(one.cpu_s), _size(one.memory_bytes),
            _duration(one.silent_s), _duration(one.uptime_s), str(one.restarts or ""), one.doing, without_subject(one),
        ]
        for one in processes
    ]  # fmt: skip
    keys = {
        7: [one.cpu_s for one in processes],
        8: [float(one.memory_bytes) for one in processes],
        9: [one.silent_s for one in processes],
        10: [one.uptime_s for one in processes],
    }
    is_named = all(one.name.startswith(one.group) for one in processes)
    shown = [at for at, name in enumerate(_PROCESS_HEAD)
             if any(row[at] for row in rows) and not (name == "group" and is_named)]  # fmt: skip
    return ReportTable(
        "Processes",
        [_PROCESS_HEAD[at] for at in shown],
        [[row[at] for at in shown] for row in rows],
        frozenset(place for place, at in enumerate(shown) if _PROCESS_HEAD[at] in _NUMBERS),
        {place: keys[at] for place, at in enumerate(shown) if at in keys},
    )


def _timeline(view: View) -> ReportChart:
    data = {"started": view.started, "at": view.at, "events": [msgspec.to_builtins(one) for one in view.events]}
    return ReportChart("Time line", _with(timeline, data), TIMELINE.height, TIMELINE.help, wide=True)


def _events(events: tuple[EventView, ...]) -> ReportTable:
    latest = events[::-1]
    rows = [(shown_moment(one.at) if one.at else "", one.kind, one.process, one.text) for one in latest]
    return ReportTable("Events", ("time", "kind", "process", "what happened"), rows, help="the latest first")


def _duration(seconds: float) -> str:
    return shown_duration(round(seconds, 1)) if seconds else ""


def _size(size_bytes: int) -> str:
    return shown_size(size_bytes) if size_bytes else ""


__all__ = ["made_at", "panel_charts", "view_document"]
