"""`/runs`: the table of all runs: filter, sort, group, choose columns, compare, label and archive."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from nicegui import ui
from starlette.requests import Request

from ropewalk.escaping import escaped
from ropewalk.page.actions import NumberedActions
from ropewalk.page.frame import Visit
from ropewalk.page.runs.notices import carry_out, runs_frame, show_unreadable, tell
from ropewalk.page.runs.row_selection import CONFIG
from ropewalk.page.runs.run_table import RunColumn, RunTable
from ropewalk.page.runs.store_reader import RESPONSE_S, StoreReader, StoreUnreadable
from ropewalk.quantities import counted
from ropewalk.tracking.records import LabelsAre, RunRecord

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_REFRESH_S = 2.0
_BLOCK = 100
"""Rows that the browser asks for at once."""
MOST_COMPARED = 20
_GROUPS = {"": "no groups", "project": "project", "state": "state", "kind": "kind", "labels": "labels", "host": "host",
           "parent": "parent"}  # fmt: skip
_WIDTHS = {
    "name": 210,
    "state": 116,
    "project": 120,
    "kind": 96,
    "labels": 130,
    "created": 142,
    "took": 100,
    "why": 260,
}


def add_table_page(reader: StoreReader, table: RunTable, actions: NumberedActions) -> None:
    """Serve `/runs`.

    Args:
        reader: reads the store.
        table: its table of runs.
        actions: numbers and logs what visitors do.
    """

    @ui.page("/runs", response_timeout=RESPONSE_S)
    async def runs(request: Request) -> None:  # pyright: ignore[reportUnusedFunction]
        with runs_frame(request, "Runs") as visit:
            ui.add_head_html(f'<script>ropewalkPreload("nicegui-aggrid"); ropewalkTable.ahead({_BLOCK});</script>')
            try:
                await reader.read(table.refresh)
            except StoreUnreadable as error:
                show_unreadable(error)
                return
            _TableView(reader, table, actions, visit, request.query_params)


class _TableView:
    """The table of one browser tab."""

    def __init__(
        self, reader: StoreReader, table: RunTable, actions: NumberedActions, visit: Visit, given: Mapping[str, str]
    ) -> None:
        self._actions, self._visit = actions, visit
        self._reader, self._table = reader, table
        asked = [name for name in given.get("columns", "").split(",") if name]
        self._asked = {name: at for at, name in enumerate(asked)}
        """Columns that the address names, with their places; what is changed later is known by the browser."""
        self._columns = table.columns
        self._version = table.version
        self._tools(given, visit)
        self._grid = ui.aggrid(
            self._options(_sorts(given.get("sort", ""))), theme="quartz", auto_size_columns=False
        ).style("height: calc(100vh - 128px); min-height: 300px")
        visit.every(self._refresh, _REFRESH_S)

    def _tools(self, given: Mapping[str, str], visit: Visit) -> None:
        with ui.row().classes("items-center w-full no-wrap tools table-tools").style("gap: 12px"):
            filter_box = ui.input(placeholder="Filter: words in name, config, labels, cause   ( / )")
            filter_box.props('dense outlined clearable debounce=250 type=search aria-label="filter"')
            filter_box.classes("filter").style("flex: 0 1 340px; min-width: 150px").value = given.get("q", "")
            filter_box.on("update:model-value", js_handler='(v) => ropewalkTable.set({q: v || ""})')
            groups = _GROUPS | {c.id: f"config: {escaped(c.name)}" for c in self._columns if c.id.startswith(CONFIG)}
            group = given.get("group", "")
            ui.select(
                groups, value=group if group in groups else "", on_change=lambda e: self._set(group=e.value)
            ).props('dense outlined options-dense aria-label="group by"').style("width: 150px")
            ui.switch("trials", value=given.get("trials") == "1", on_change=lambda e: self._set(trials=e.value))
            ui.switch("archived", value=given.get("archived") == "1", on_change=lambda e: self._set(archived=e.value))
            ui.label("").props('id="ropewalk-count"').classes("muted text-no-wrap")
            ui.space()
            words = 'flat dense no-caps size="13px"'
            ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props(words)
            if visit.may_act:
                ui.button("Label", icon="label", on_click=self._label).props(words)
                ui.button("Archive", icon="archive", on_click=self._archive).props(words)
            ui.button("Columns", icon="view_column", on_click=self._choose_columns).props(words)
            ui.button(icon="download", on_click=lambda: ui.run_javascript("ropewalkTable.export()")).props(
                'flat round dense title="save as CSV" aria-label="save as CSV"'
            )

    # --- the grid -----------------------------------------------------------------------------------------------------

    def _options(self, sorts: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
        return {
            "columnDefs": self._definitions(sorts),
            "maintainColumnOrder": True,
            "defaultColDef": {"resizable": True, "sortable": True, "minWidth": 60, "suppressHeaderMenuButton": False},
            "rowModelType": "infinite",
            "cacheBlockSize": _BLOCK,
            "maxBlocksInCache": 50,
            "infiniteInitialRowCount": 30,
            "rowHeight": 30,
            "headerHeight": 34,
            "suppressFieldDotNotation": True,
            "animateRows": False,
            "alwaysMultiSort": False,
            "rowSelection": {"mode": "multiRow", "headerCheckbox": False, "enableClickSelection": False,
                             ":isRowSelectable": "n => n.data && n.data.group === undefined"},
            "selectionColumnDef": {"pinned": "left", "width": 40},
            "overlayNoRowsTemplate": "<span>No run matches: clear the filter, or turn on “trials” or “archived”</span>",
            ":getRowId": "p => p.data.id",
            ":datasource": "({getRows: p => ropewalkTable.getRows(p)})",
            ":initialState": "ropewalkTable.initial()",
            ":onGridReady": "p => ropewalkTable.ready(p)",
            ":onRowClicked": "p => ropewalkTable.clicked(p)",
            ":onCellKeyDown": "p => ropewalkTable.key(p)",
        }  # fmt: skip

    def _definitions(self, sorts: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
        columns = sorted(self._columns, key=lambda column: self._asked.get(column.id, len(self._asked)))
        return [self._definition(column, sorts) for column in columns]

    def _definition(self, column: RunColumn, sorts: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
        is_shown = column.id in self._asked if self._asked else column.is_usual
        definition: dict[str, Any] = {
            "colId": column.id,
            "field": column.id,
            "headerName": escaped(column.name),
            # What is initial leaves a column as the visitor has made it when columns of new runs come.
            "initialHide": not is_shown,
            "initialWidth": _WIDTHS.get(column.id) or min(200, max(84, 40 + 8 * len(column.name))),
            "filter": "agNumberColumnFilter" if column.is_number and column.id not in _WIDTHS else "agTextColumnFilter",
            "cellDataType": False,
        }
        if column.id in sorts:
            definition["sort"], definition["sortIndex"] = sorts[column.id]
        match column.id:
            case "name":
                more = {":cellRenderer": "p => ropewalkTable.name(p)", "pinned": "left"}
            case "state":
                more = {":cellRenderer": "p => ropewalkTable.state(p)"}
            case "created":
                more = {":valueFormatter": "p => ropewalkTable.moment(p)", "filter": False}
            case "took":
                more = {":valueFormatter": "p => ropewalkTable.duration(p)", "filter": "agNumberColumnFilter"}
            case _ if column.is_number:
                more = {":valueFormatter": "p => ropewalkTable.number(p)", "type": "rightAligned"}
            case _:
                more = {}
        return definition | more

    async def _refresh(self) -> None:
        try:
            version = await self._reader.read(self._table.refresh)
        except StoreUnreadable:
            return  # the rows stay, and the next refresh tries again
        if self._columns is not self._table.columns and self._columns != self._table.columns:
            self._columns = self._table.columns
            defs = self._definitions({})
            self._grid.run_grid_method("setGridOption", "columnDefs", defs)  # pyright: ignore[reportUnknownMemberType]
        if version != self._version:
            self._version = version
            ui.run_javascript("ropewalkTable.refresh()")

    def _set(self, **change: Any) -> None:
        ui.run_javascript(f"ropewalkTable.set({json.dumps(change)})")

    async def _choose_columns(self) -> None:
        shown = cast("list[str]", await ui.run_javascript("return ropewalkTable.shown()", timeout=5.0))
        with ui.dialog(value=True) as dialog, ui.card().style("width: 420px; max-height: 80vh"):
            dialog.on("hide", dialog.delete)  # it has a box for each of hundreds of columns
            ui.label("Columns").classes("text-bold")
            box = ui.input(placeholder="find").props("dense outlined clearable type=search").classes("w-full")
            rows: list[tuple[str, ui.checkbox]] = []
            with ui.scroll_area().style("height: 50vh"):
                for column in self._columns:
                    kind = "config" if column.id.startswith(CONFIG) else "metric" if "." in column.id else ""
                    words = f"{escaped(column.name)}{f'  ({kind})' if kind else ''}"
                    one = (
                        ui.checkbox(
                            words,
                            value=column.id in shown,
                            on_change=lambda e, id=column.id: self._show_column(id, bool(e.value)),
                        )
                        .props("dense")
                        .classes("w-full")
                    )
                    rows.append((column.name.lower(), one))
            box.on_value_change(lambda e: [one.set_visibility((e.value or "").lower() in name) for name, one in rows])

    def _show_column(self, id: str, visible: bool) -> None:
        ui.run_javascript(f"ropewalkTable.choose({json.dumps(id)}, {json.dumps(visible)})")

    # --- what is done with the selected runs --------------------------------------------------------------------------

    async def _selected(self) -> list[str]:
        found = cast("object", await ui.run_javascript("return ropewalkTable.selected()", timeout=5.0))
        ids = [str(one) for one in cast("list[Any]", found)] if isinstance(found, list) else []
        if not ids:
            tell("Select runs first, with the boxes on the left.", is_good=False)
        return ids

    async def _compare(self) -> None:
        ids = await self._selected()
        if len(ids) == 1 or len(ids) > MOST_COMPARED:
            tell(f"Select 2 to {MOST_COMPARED} runs to compare them, not {len(ids)}.", is_good=False)
        elif ids:
            ui.navigate.to(f"/compare?runs={','.join(quote(id, safe='') for id in ids)}")

    async def _archive(self) -> None:
        if ids := await self._selected():

            def archive(store: RunStore) -> str:
                for id in ids:
                    store.archive(id)
                return f"{counted(len(ids), 'run')} archived; the switch “archived” shows them"

            await self._change(f"archive {counted(len(ids), 'run')}", archive)

    async def _label(self) -> None:
        ids = await self._selected()
        if not ids:
            return
        with ui.dialog() as dialog, ui.card():
            dialog.on("hide", dialog.delete)  # it is made for one use
            ui.label(f"Label {counted(len(ids), 'run')}").classes("text-bold")
            box = ui.input("label").props("dense outlined autofocus")
            with ui.row():
                ui.button("Add", on_click=lambda: dialog.submit("labelled")).props("dense no-caps")
                ui.button("Remove", on_click=lambda: dialog.submit("no longer labelled")).props("dense flat no-caps")
        done: str | None = await dialog
        if not done or not (text := (box.value or "").strip()):
            return
        given = LabelsAre([text]) if done == "labelled" else LabelsAre([], [text])

        def label(store: RunStore) -> str:
            store.apply([RunRecord(id, given) for id in ids])
            return f"{counted(len(ids), 'run')} {done} {text!r}"

        await self._change(f"label {counted(len(ids), 'run')} {text!r}", label)

    async def _change(self, what: str, change: Callable[[RunStore], str]) -> None:
        await carry_out(self._visit, self._reader, self._actions, what, change)
        await self._refresh()


def _sorts(text: str) -> dict[str, tuple[str, int]]:
    try:
        given: Any = json.loads(text) if text else []
        pairs: Sequence[tuple[str, str]] = [(str(one["colId"]), str(one["sort"])) for one in given]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return {id: (direction, at) for at, (id, direction) in enumerate(pairs) if direction in ("asc", "desc")}


__all__ = ["MOST_COMPARED", "add_table_page"]
