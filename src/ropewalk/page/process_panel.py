"""The processes of a thing: a map of tiles by host, and a table that filters and sorts; a click opens one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nicegui import ui

from ropewalk.escaping import escaped
from ropewalk.page.browser import call_browser, remember_entries
from ropewalk.page.frame import Panel
from ropewalk.page.process_rows import Row, changes, process_rows
from ropewalk.page.watcher import Seen
from ropewalk.quantities import counted

_HEAD_PX = 30
_ROW_PX = 27
_MOST_ROWS = 14
"""Rows that are seen at once; more are scrolled."""
_DONE = {"program": "calls", "pool": "tasks", "trainer": "steps", "population": "generations", "search": "reports"}
"""What is counted by processes, by kind of thing."""


class ProcessPanel:
    """The panel. Make it where it stands; `show` sends the browser what has changed.

    Args:
        seen: what is known of the thing when the page is opened.
        text: that the table is filtered by at first.
        is_pool: whether it is the pool of the thing that the page is about.
    """

    def __init__(self, seen: Seen, text: str = "", *, is_pool: bool = False) -> None:
        self._rows: dict[str, Row] = {}
        first = list(process_rows(seen).values())
        with Panel("Processes") as self._card:
            with self._card.head:
                self._counts = ui.label().classes("rw-small ellipsis").style("flex: 0 1 auto; min-width: 0")
                if is_pool:
                    words = f"tasks and deaths of pool {escaped(seen.view.name)}"
                    ui.link(words, f"/now/{seen.view.id}").classes("rw-small")
                ui.space()
                ui.input(placeholder="filter", value=text, on_change=lambda e: self._filter(str(e.value or ""))).props(
                    'dense outlined clearable type=search aria-label="filter processes"'
                ).classes("filter").style("width:180px")
                ui.button(icon="table_view", on_click=self._save).props(
                    'flat round dense size="sm" title="save as CSV" aria-label="save as CSV"'
                )
            with ui.element("div").classes("w-full") as self._overview:
                self._map = ui.element("div").classes("rw-map")
                with ui.element("div").classes("rw-keys"):
                    _key()
            # A grid that is updated as an element loses its rows: what changes is the height of its frame.
            with ui.element("div").classes("w-full") as self._frame:
                self._grid = ui.aggrid(_options(seen, first), theme="balham", auto_size_columns=False)
                self._grid.classes("rw-grid w-full").style("height:100%")
        if text:
            call_browser("filter", self._grid.id, text)
        self._num_shown = -1
        self._fit(len(seen.view.processes))

    def show(self, seen: Seen) -> None:
        """Show what is known."""
        rows = process_rows(seen)
        found, gone = changes(self._rows, rows)
        if found or gone:
            change = {"all": not self._rows, "rows": found, "gone": gone}
            call_browser("processes", self._grid.id, self._map.id, change)
            self._fit(len(rows))
        self._rows = rows
        self._counts.set_text(_counts(rows))

    def _fit(self, num_processes: int) -> None:
        """Show the map only of several processes, and as many rows of the table as there are."""
        num_shown = min(_MOST_ROWS, max(1, num_processes))
        if num_shown == self._num_shown:
            return
        self._num_shown = num_shown
        self._overview.set_visibility(num_processes > 1)
        self._frame.style(replace=f"height:{_HEAD_PX + _ROW_PX * num_shown + 2}px")

    def _filter(self, text: str) -> None:
        call_browser("filter", self._grid.id, text)
        remember_entries({"processes": text})

    def _save(self) -> None:
        call_browser("save", self._grid.id, "processes.csv")


def _counts(rows: dict[str, Row]) -> str:
    hosts = {row["host"] for row in rows.values()}
    states = Counter(row["state"] for row in rows.values())
    words = [f"{counted(len(rows), 'process', 'es')} on {counted(len(hosts), 'host')}" if rows else "no processes"]
    words += [f"{number} {state}" for state, number in states.most_common(6)]
    slow = sum(row["straggler"] for row in rows.values())
    silent = sum(row["silent_s"] >= 5 for row in rows.values())
    words += [f"{slow} slow"] if slow else []
    words += [f"{silent} silent"] if silent else []
    return " · ".join(words)


def _key() -> None:
    for look, style, words in (
        ("rw-good", "--busy:0", "up"),
        ("rw-good", "--busy:1", "busy"),
        ("rw-warn", "", "starting"),
        ("rw-bad", "", "failed"),
        ("rw-good rw-slow", "--busy:0.5", "slow"),
        ("rw-good rw-silent", "--busy:0.5", "silent"),
    ):
        with ui.element("span").classes("rw-key"):
            ui.element("span").classes(f"rw-tile {look}").style(style)
            ui.label(words)


def _options(seen: Seen, rows: list[Row]) -> dict[str, Any]:
    done = _DONE.get(seen.view.kind, "done")
    group = "stage" if seen.view.kind == "trainer" else "group"
    columns = [
        {"headerName": "name", "field": "name", "width": 108, "pinned": "left", "cellClass": "text-bold",
         ":cellRenderer": "ropewalk.cells.name"},
        {"headerName": "host", "field": "host", "width": 96, "hide": True},
        {"headerName": group, "field": "group", "width": 100, "hide": True},
        {"headerName": "state", "field": "state", "width": 112, ":cellRenderer": "ropewalk.cells.state"},
        {"headerName": "doing", "field": "doing", "minWidth": 90, "flex": 1},
        _number("for", "doing_s", 62, formatter="duration", unit="s"),
        _number("CPU", "cpu", 76, renderer="cpu", unit="cores"),
        _number("memory", "memory", 84, renderer="memory", unit="MiB"),
        _number("restarts", "restarts", 72, renderer="restarts"),
        {"headerName": "last end", "field": "cause", "minWidth": 100, "flex": 2,
         ":cellRenderer": "ropewalk.cells.cause"},
        _number("silent", "silent_s", 64, renderer="silent", hide=True, unit="s"),
        _number("waiting", "waiting", 70, formatter="count", hide=seen.view.kind != "program"),
        _number(done, "done", 78, formatter="count"),
        _number(f"{done}/s", "rate", 74, formatter="rate"),
        _number("pid", "pid", 76, formatter="pid"),
    ]  # fmt: skip
    return {
        "columnDefs": columns,
        "rowData": rows,
        "defaultColDef": {"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        "rowHeight": _ROW_PX,
        "headerHeight": _HEAD_PX,
        "context": {"most": max((row["memory"] for row in rows), default=1)},
        "animateRows": False,
        "suppressCellFocus": False,
        "suppressFieldDotNotation": True,
        ":getRowId": "params => params.data.name",
        ":onRowClicked": "params => ropewalk.open(params.data.name)",
        ":onCellKeyDown": "ropewalk.onKey",
        "overlayNoRowsTemplate": "no processes yet",
    }


def _number(
    title: str, field: str, width: int, *, formatter: str = "", renderer: str = "", hide: bool = False, unit: str = ""
) -> dict[str, Any]:
    """Return a column of numbers, whose unit stands in the cells of the table, and in the heading of the CSV."""
    column: dict[str, Any] = {"headerName": title, "field": field, "width": width, "type": "rightAligned", "hide": hide}
    if unit:
        column["context"] = {"unit": unit}
    if formatter:
        column[":valueFormatter"] = f"ropewalk.cells.{formatter}"
    if renderer:
        column[":cellRenderer"] = f"ropewalk.cells.{renderer}"
    return column


__all__ = ["ProcessPanel"]
