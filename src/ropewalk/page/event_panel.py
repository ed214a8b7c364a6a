"""What happened to a thing: marks on a line of time, and a table with the whole texts, the newest first."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from ropewalk.control.view import EventView, View
from ropewalk.escaping import escaped
from ropewalk.page.browser import call_browser, remember_entries
from ropewalk.page.chart import Chart
from ropewalk.page.frame import Panel
from ropewalk.page.pictures.timeline import PICTURE, timeline, timeline_height
from ropewalk.page.style import Style
from ropewalk.page.watcher import Seen

_REDRAW_S = 5.0
"""The line of time moves on at least this often; it is drawn when something happens."""
_LOOKS = {"death": "bad", "preemption": "warn", "retry": "warn", "restart": "warn", "join": "good", "scale": "good",
          "checkpoint": "good"}  # fmt: skip


class EventPanel:
    """The panel. Make it where it stands; `show` adds what is new.

    Args:
        seen: what is known when the page is opened.
        style: of the picture.
        text: that the table is filtered by at first.
    """

    def __init__(self, seen: Seen, style: Style, text: str = "") -> None:
        self._style = style
        self._last: tuple[EventView, ...] = ()
        self._drawn: tuple[EventView, ...] | None = None
        self._drawn_at = 0.0
        self._number = 0
        with Panel(PICTURE.title, help=PICTURE.help) as self._card:
            self._chart = Chart(f"{seen.view.name} events", PICTURE.height)
            with ui.row().classes("w-full justify-end"):
                ui.input(placeholder="filter", value=text, on_change=lambda e: self._filter(str(e.value or ""))).props(
                    'dense outlined clearable type=search aria-label="filter events"'
                ).classes("filter").style("width:180px")
                ui.button(icon="table_view", on_click=self._save).props(
                    'flat round dense size="sm" title="save as CSV" aria-label="save as CSV"'
                )
            self._grid = ui.aggrid(_options(), theme="balham", auto_size_columns=False)
            self._grid.classes("w-full").style("height:240px")
        if text:
            call_browser("filter", self._grid.id, text)

    def show(self, seen: Seen) -> None:
        """Show what is known."""
        view = seen.view
        fresh = new_events(self._last, view.events)
        if (not self._card.visible and view.events) or (self._card.visible and not view.events):
            self._card.set_visibility(bool(view.events))
        if fresh:
            self._last = view.events
            call_browser("rows", self._grid.id, [self._row(event) for event in reversed(fresh)])
        is_new = self._last is not self._drawn or view.at - self._drawn_at >= _REDRAW_S
        if is_new and self._chart.is_due:
            self._drawn, self._drawn_at = self._last, view.at
            data = timeline_data(view)
            self._chart.set_height(timeline_height(data))
            self._chart.show(timeline(data, self._style))

    def _row(self, event: EventView) -> dict[str, Any]:
        self._number += 1
        return {
            "id": str(self._number),
            "at": event.at,
            "kind": escaped(event.kind),
            "look": _LOOKS.get(event.kind, "muted"),
            "process": escaped(event.process),
            "text": escaped(event.text),
        }

    def _filter(self, text: str) -> None:
        call_browser("filter", self._grid.id, text)
        remember_entries({"events": text})

    def _save(self) -> None:
        call_browser("save", self._grid.id, "events.csv")


def new_events(old: tuple[EventView, ...], new: tuple[EventView, ...]) -> tuple[EventView, ...]:
    """Return the events that follow the last of the old ones, by their times if that is not kept any more."""
    if not old:
        return new
    last = old[-1]
    for index in range(len(new) - 1, -1, -1):
        if new[index] == last:
            return new[index + 1 :]
    return tuple(event for event in new if event.at >= last.at)


def timeline_data(view: View) -> dict[str, Any]:
    """Return the events of a view as the data of their picture."""
    events = [{"at": one.at, "kind": one.kind, "text": one.text, "process": one.process} for one in view.events]
    return {"started": view.started, "at": view.at, "events": events}


def _options() -> dict[str, Any]:
    return {
        "columnDefs": [
            {
                "headerName": "time",
                "field": "at",
                "width": 150,
                ":valueFormatter": "ropewalk.cells.time",
                "context": {"unit": "UTC"},
            },
            {"headerName": "kind", "field": "kind", "width": 120, ":cellRenderer": "ropewalk.cells.event"},
            {"headerName": "process", "field": "process", "width": 120, ":cellRenderer": "ropewalk.cells.name"},
            {"headerName": "what", "field": "text", "flex": 1, "minWidth": 300, ":cellRenderer": "ropewalk.cells.text"},
        ],
        "rowData": [],
        "defaultColDef": {"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        "rowHeight": 26,
        "headerHeight": 28,
        "animateRows": False,
        "suppressFieldDotNotation": True,
        ":getRowId": "params => params.data.id",
        "overlayNoRowsTemplate": "nothing happened yet",
    }


__all__ = ["EventPanel", "new_events", "timeline_data"]
