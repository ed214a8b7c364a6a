"""`/runs/ID`: one run: its header and actions, curves, settings, time line, checkpoints, artifacts, logs and notes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nicegui import ui
from starlette.requests import Request

from ropewalk.errors import RunNotFound
from ropewalk.page.actions import NumberedActions
from ropewalk.page.browser import remember_entries
from ropewalk.page.frame import Visit
from ropewalk.page.runs import run_panels
from ropewalk.page.runs.curve_data import CurveReader, CurveRun
from ropewalk.page.runs.curve_panels import CurvePanels, remember, view_of
from ropewalk.page.runs.log_view import LogView
from ropewalk.page.runs.notices import carry_out, runs_frame, show_unreadable
from ropewalk.page.runs.run_actions import RunAction, perform
from ropewalk.page.runs.run_header import RunHeader
from ropewalk.page.runs.run_table import RunTable
from ropewalk.page.runs.store_reader import RESPONSE_S, StoreReader, StoreUnreadable
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.run_reports import RunReport
from ropewalk.tracking.store.rows import RunRow

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_REFRESH_S = 2.0
_SYSTEM = "system"
_TABS = ("Curves", "Settings", "Time line", "Checkpoints", "Artifacts", "Logs", "System", "Notes", "Runs")


def add_run_page(reader: StoreReader, table: RunTable, points: CurveReader, actions: NumberedActions) -> None:
    """Serve `/runs/ID`.

    Args:
        reader: reads the store.
        table: is refreshed after an action.
        points: reads points, and keeps them.
        actions: numbers and logs what visitors do.
    """

    @ui.page("/runs/{id}", response_timeout=RESPONSE_S)
    async def run(request: Request, id: str) -> None:  # pyright: ignore[reportUnusedFunction]
        try:
            found = await reader.read(lambda store: _read(store, store.run(id)))
        except StoreUnreadable as error:
            with runs_frame(request, "Run"):
                show_unreadable(error)
            return
        with runs_frame(request, found[0].run.name) as visit:
            view = _RunView(reader, table, points, actions, visit, found, request)
            await view.show(request.query_params.get("tab", ""))
            visit.every(view.refresh, _REFRESH_S)


class _RunView:
    """The page of one run in one browser tab."""

    def __init__(
        self,
        reader: StoreReader,
        table: RunTable,
        points: CurveReader,
        actions: NumberedActions,
        visit: Visit,
        found: tuple[RunReport, set[float]],
        request: Request,
    ) -> None:
        self._reader, self._table, self._points, self._visit = reader, table, points, visit
        self._actions = actions
        self._report, self._pinned = found
        self._given = request.query_params
        self._drawn: set[str] = set()
        self._refreshers: dict[str, Callable[[], Awaitable[None]]] = {}
        self._gone = ui.label("This run was deleted; what is shown is what it was.").classes("text-negative text-bold")
        self._gone.set_visibility(False)
        self._header = RunHeader(self._report, visit, self._act)
        self._tabs = ui.tabs(on_change=lambda e: self.show(str(e.value))).props(
            "dense no-caps align=left inline-label outside-arrows mobile-arrows"
        )
        with self._tabs.classes("w-full"):
            self._names = {name: ui.tab(name, label=self._label(name)) for name in _TABS}
        self._names["Runs"].set_visibility(bool(self._report.children))
        self._places = {name: ui.column().classes("w-full") for name in self._names}
        for place in self._places.values():
            place.set_visibility(False)

    def _label(self, name: str) -> str:
        report = self._report
        counts = {
            "Checkpoints": len(report.checkpoints), "Artifacts": len(report.artifacts), "Notes": len(report.notes),
            "Runs": len(report.children), "Time line": len(report.attempts) if len(report.attempts) > 1 else 0,
        }  # fmt: skip
        return f"{name} ({counts[name]:,})" if counts.get(name) else name

    # --- tabs ---------------------------------------------------------------------------------------------------------

    async def show(self, name: str) -> None:
        """Show a tab; it is drawn when it is shown first."""
        name = name if name in self._places else "Curves"
        if self._tabs.value != name:
            self._tabs.set_value(name)
            return  # it comes back here
        for other, place in self._places.items():
            place.set_visibility(other == name)
        if name not in self._drawn:
            self._drawn.add(name)
            self._draw(name)
            remember_entries({"tab": "" if name == "Curves" else name})
        if name in self._refreshers:
            await self._refreshers[name]()

    def _draw(self, name: str) -> None:
        place, report, visit = self._places[name], self._report, self._visit
        place.clear()
        with place:
            match name:
                case "Curves" | "System":
                    self._refreshers[name] = self._curves(is_system=name == "System").refresh
                case "Logs":
                    log = LogView(self._reader, visit, report.run.id, report.run.folder, self._given)
                    self._refreshers[name] = log.refresh
                case "Settings":
                    run_panels.draw_config(report)
                case "Time line":
                    run_panels.draw_time_line(report, visit)
                case "Checkpoints":
                    run_panels.draw_checkpoints(report, self._pinned, visit, self._reader, self._act)
                case "Artifacts":
                    run_panels.draw_artifacts(report, visit)
                case "Notes":
                    run_panels.draw_notes(report, visit, self._act)
                case _:
                    run_panels.draw_children(report, visit)

    def _curves(self, *, is_system: bool) -> CurvePanels:
        run, view = self._report.run, view_of(self._given)
        if is_system and "x" not in self._given:  # its steps begin again with each attempt
            view = replace(view, x="time")
        return CurvePanels(
            self._reader, self._points, self._visit, [CurveRun(run.id, run.name, run.created, 0)],
            shows=lambda group: (group == _SYSTEM) == is_system, changed=remember, view=view, given=self._given,
            found="system metrics" if is_system else "metrics",
        )  # fmt: skip

    # --- what changes -------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read what has changed, and draw it."""
        id, before = self._report.run.id, self._report
        try:
            run = await self._reader.read(lambda store: store.run(id))
            if run == before.run and run.state != "running":
                await self._refresh_log()
                return
            report, pinned = await self._reader.read(lambda store: _read(store, run))
        except StoreUnreadable as error:  # what is shown stays, and the next refresh tries again
            self._gone.set_visibility(isinstance(error.__cause__, RunNotFound))
            return
        changed = {
            "Settings": report.run.config != before.run.config,
            "Time line": (report.attempts, report.events) != (before.attempts, before.events),
            "Checkpoints": (report.checkpoints, pinned) != (before.checkpoints, self._pinned),
            "Artifacts": report.artifacts != before.artifacts,
            "Notes": report.notes != before.notes,
            "Runs": report.children != before.children,
        }
        self._report, self._pinned = report, pinned
        self._header.show(self._report)
        for name, has_changed in changed.items():
            if has_changed:
                self._names["Runs"].set_visibility(bool(report.children))
                self._names[name].props(f'label="{self._label(name)}"')
                if name in self._drawn:
                    self._draw(name)
        if self._tabs.value in self._refreshers:
            await self._refreshers[str(self._tabs.value)]()

    async def _refresh_log(self) -> None:
        if self._tabs.value == "Logs" and "Logs" in self._refreshers:
            await self._refreshers["Logs"]()

    async def _act(self, action: RunAction) -> None:
        what = f"{action.name} {self._report.run.name}"
        is_done = await carry_out(self._visit, self._reader, self._actions, what, lambda store: perform(store, action))
        if action.name == "delete" and is_done:
            ui.navigate.to("/runs")
        else:
            await self._show_change()

    async def _show_change(self) -> None:
        id = self._report.run.id
        try:
            self._report, self._pinned = await self._reader.read(lambda store: _read(store, store.run(id)))
            await self._reader.read(self._table.refresh)
        except StoreUnreadable:
            return
        self._header.show(self._report)
        for name in ("Notes", "Time line", "Checkpoints", "Runs"):
            if name in self._drawn:
                self._draw(name)


def _read(store: RunStore, run: RunRow) -> tuple[RunReport, set[float]]:
    """Return all that is known of a run, and the steps of its pinned checkpoints."""
    return RunReport.of(store, run), CheckpointFolder(
        Path(run.folder) / "checkpoints"
    ).pinned() if run.folder else set()


__all__ = ["add_run_page"]
