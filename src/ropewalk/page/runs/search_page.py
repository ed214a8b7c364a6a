"""`/searches` and `/search/ID`: the searches of the store, and one of them, live while it runs."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from nicegui import ui
from starlette.requests import Request

from ropewalk.errors import SearchFailed, SearchInvalid
from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.actions import NumberedActions
from ropewalk.page.browser import call_browser
from ropewalk.page.chart import Chart
from ropewalk.page.frame import Panel, Visit
from ropewalk.page.pictures.history import history
from ropewalk.page.pictures.importance import importance
from ropewalk.page.pictures.pareto import pareto
from ropewalk.page.pictures.rungs import rungs
from ropewalk.page.runs.configuration_panel import ConfigurationPanel
from ropewalk.page.runs.layout import plain_table, save_button, tiles
from ropewalk.page.runs.notices import carry_out, runs_frame, show_unreadable
from ropewalk.page.runs.run_actions import RunAction, perform
from ropewalk.page.runs.run_header import RunHeader
from ropewalk.page.runs.run_table import RunTable
from ropewalk.page.runs.search_data import (
    history_data,
    pareto_data,
    rungs_data,
    state_counts,
    trial_columns,
    trial_rows,
)
from ropewalk.page.runs.store_reader import RESPONSE_S, StoreReader, StoreUnreadable
from ropewalk.page.style import state_color
from ropewalk.quantities import shown_duration
from ropewalk.search.importance import FEWEST_TRIALS, importances
from ropewalk.search.loading import read_results
from ropewalk.search.results import SearchResults
from ropewalk.search.store_keeper import lines_of
from ropewalk.tracking.run_reports import RunReport
from ropewalk.tracking.store.rows import RunRow

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_REFRESH_S = 2.0
_MOST_SEARCHES = 100
_IMPORTANCE_EVERY = 8
"""Importances are computed again after this number of further trials, and when the search has ended."""

_OBJECT = re.compile(r"<(?:\w+\.)*(\w+) object[^>]*>")


@dataclass(frozen=True, slots=True)
class _SearchNow:
    """What was read of a search."""

    report: RunReport
    results: SearchResults
    rungs: Mapping[str, Any]
    shares: Mapping[str, float] = field(default_factory=dict[str, float])


class SearchReader:
    """Reads searches, and keeps what takes long to compute: importances and best values; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: dict[str, tuple[tuple[int, str], dict[str, float]]] = {}
        self._best: dict[str, tuple[tuple[float, float], str]] = {}

    def read(self, store: RunStore, id: str) -> _SearchNow:
        """Read all that is known of a search.

        Raises:
            SearchInvalid: the run is no search.
        """
        report = RunReport.of(store, store.run(id))
        results = read_results(store, report.run.id)
        with contextlib.suppress(SearchInvalid):
            found = rungs_data(results, lines_of(store, report.run.id))
            return _SearchNow(report, results, found)
        return _SearchNow(report, results, {})

    def best(self, store: RunStore, run: RunRow) -> str:
        """Return the best value of a search as text; "" if there is none."""
        key = (run.changed, run.heard)
        with self._lock:
            kept = self._best.get(run.id)
        if kept is not None and kept[0] == key:
            return kept[1]
        try:
            results = read_results(store, run.id)
            words = f"{results.best.best:.5g}"
        except (SearchFailed, SearchInvalid, LookupError, ValueError):
            words = ""
        with self._lock:
            self._best[run.id] = key, words
        return words

    def importances(self, read: _SearchNow) -> dict[str, float]:
        """Return the importance of each hyperparameter; the first time, it imports what computes it for a second."""
        run, results = read.report.run, read.results
        ended = sum(trial.best is not None for trial in results)
        key = (ended // _IMPORTANCE_EVERY if run.state == "running" else ended, run.state)
        with self._lock:
            kept = self._shares.get(run.id)
            if kept is not None and kept[0] == key:
                return kept[1]
            shares = importances(results)
            self._shares[run.id] = key, shares
            return shares


def add_search_pages(reader: StoreReader, table: RunTable, actions: NumberedActions) -> None:
    """Serve `/searches` and `/search/ID`.

    Args:
        reader: reads the store.
        table: its table of runs.
        actions: numbers and logs what visitors do.
    """
    searches = SearchReader()

    @ui.page("/searches", response_timeout=RESPONSE_S)
    async def all_searches(request: Request) -> None:  # pyright: ignore[reportUnusedFunction]
        with runs_frame(request, "Searches") as visit:
            drawn = _SearchList(visit)

            async def refresh() -> None:
                drawn.show(await reader.read(lambda store: _list(store, searches, table)))

            try:
                await refresh()
            except StoreUnreadable as error:
                show_unreadable(error)
                return
            visit.every(_quietly(refresh), _REFRESH_S)

    @ui.page("/search/{id}", response_timeout=RESPONSE_S)
    async def one_search(request: Request, id: str) -> None:  # pyright: ignore[reportUnusedFunction]
        try:
            read = await reader.read(lambda store: _or_invalid(lambda: searches.read(store, id)))
        except StoreUnreadable as error:
            with runs_frame(request, "Search"):
                show_unreadable(error)
            return
        if isinstance(read, str):
            with runs_frame(request, "Search"):
                ui.label(escaped_lines(read))
                ui.link("Its page as a run", f"/runs/{quote(id, safe='')}")
            return
        with runs_frame(request, read.report.run.name) as visit:
            view = _SearchView(reader, searches, actions, visit, read, request.query_params)
            visit.every(_quietly(view.refresh), _REFRESH_S)
            ui.timer(0.1, _quietly(view.weigh), once=True)  # shown before what computes it is imported


def _or_invalid(call: Callable[[], _SearchNow]) -> _SearchNow | str:
    try:
        return call()
    except (SearchInvalid, KeyError, ValueError) as error:
        return f"this search cannot be shown: {error}"


def _quietly(refresh: Callable[[], Any]) -> Callable[[], Any]:
    """Return a refresh that leaves what is shown as it is while the store cannot be read."""

    async def call() -> None:
        with contextlib.suppress(StoreUnreadable):
            await refresh()

    return call


# --- all searches -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ListedSearch:
    """A search in the list of all.

    Attributes:
        id: of the run.
        name: of the run.
        state: of the run.
        created: seconds since the epoch.
        cells: the other cells, but that of `created`.
    """

    id: str
    name: str
    state: str
    created: float
    cells: tuple[str, ...]


def _list(store: RunStore, searches: SearchReader, table: RunTable) -> list[_ListedSearch]:
    table.refresh(store)
    states = table.trial_states()
    rows: list[_ListedSearch] = []
    for run in store.runs(kind="search", order="-created", limit=_MOST_SEARCHES):
        took = shown_duration(run.lasted_s(time.time()))
        metrics = cast("list[str]", run.config.get("metric") or [])
        modes = cast("list[str]", run.config.get("mode") or [])
        goal = ", ".join(f"{metric} ({mode})" for metric, mode in zip(metrics, modes, strict=False))
        counts = state_counts(states.get(run.id, ()), is_over=run.state == "done")
        kinds = _kind(run.config.get("sampler")), _kind(run.config.get("scheduler"))
        cells = run.project, counts, goal, searches.best(store, run), *kinds, took
        rows.append(_ListedSearch(run.id, run.name, run.state, run.created, cells))
    return rows


def _kind(value: Any) -> str:
    """Return the name of a class, from the text of an object of it."""
    text = str(value or "")
    found = _OBJECT.fullmatch(text)
    return found[1] if found else text if len(text) <= 28 else f"{text[:27]}…"


class _SearchList:
    """The list of all searches, which is drawn anew if there are others, and else changed in place.

    Args:
        visit: for its colours and its clock.
    """

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._ids: list[str] | None = None
        self._states: dict[str, tuple[ui.icon, ui.label]] = {}
        self._cells: dict[str, list[ui.label]] = {}
        self._place = ui.column().classes("w-full")

    def show(self, found: Sequence[_ListedSearch]) -> None:
        """Show what was found; what has not changed stays, so that a link keeps the focus of the keyboard."""
        ids = [one.id for one in found]
        if ids != self._ids:
            self._ids, self._states = ids, {}
            self._cells = {id: [] for id in ids}
            self._place.clear()
            with self._place:
                self._draw(found)
        for one in found:
            icon, state = self._states[one.id]
            state.set_text(one.state)
            color = state_color(one.state, self._visit.style)
            if icon.style != {"color": color}:
                icon.style(replace=f"color:{color}")
            for label, text in zip(self._cells[one.id], one.cells, strict=True):
                label.set_text(escaped(text))

    def _draw(self, found: Sequence[_ListedSearch]) -> None:
        if not found:
            ui.label("No search yet: `ropewalk search train.py:train --space space.toml`, or `ropewalk.search.Search`.")
            return
        heads = ("name", "state", "started", "project", "trials", "goal", "best", "sampler", "scheduler", "took")
        with Panel("Searches"):
            plain_table("searches", heads, [self._row(one) for one in found], right=(6, 9))

    def _row(self, one: _ListedSearch) -> list[Any]:
        link = lambda: ui.link(escaped(one.name), f"/search/{quote(one.id, safe='')}") and None  # noqa: E731
        cell = lambda: self._cells[one.id].append(ui.label().classes("mono"))  # noqa: E731
        return [link, lambda: self._state(one), self._visit.moment(one.created), *(cell for _ in one.cells)]

    def _state(self, one: _ListedSearch) -> None:
        with ui.row().classes("items-center no-wrap").style("gap: 6px"):
            self._states[one.id] = ui.icon("circle", size="9px"), ui.label()


# --- one search -------------------------------------------------------------------------------------------------------


class _SearchView:
    """The page of one search in one browser tab."""

    def __init__(
        self,
        reader: StoreReader,
        searches: SearchReader,
        actions: NumberedActions,
        visit: Visit,
        read: _SearchNow,
        given: Mapping[str, str],
    ) -> None:
        self._actions = actions
        self._reader, self._searches, self._visit, self._read = reader, searches, visit, read
        self._pulse: tuple[Any, ...] = ()
        self._is_weighed = False
        run = read.report.run
        self._header = RunHeader(read.report, visit, self._act)
        ui.link("log, settings and events", f"/runs/{quote(run.id, safe='')}?tab=Settings").style("margin-top: -10px")
        self._summary = ui.label().classes("text-subtitle2")
        with tiles(300):
            with Panel("History", help="each trial, and the best so far"):
                self._history = Chart("history", 280, nothing="no data yet: no trial has reported")
            with Panel("Importance", help="PED-ANOVA; the longest bar mattered most"):
                self._importance = Chart(
                    "importance",
                    280,
                    waiting="computing…",
                    nothing=f"no data yet: it takes {FEWEST_TRIALS} trials that have reported, with different values",
                )
            with Panel("Rungs", help="filled: trials that got more steps") as self._rungs_card:
                self._rungs = Chart("rungs", 300)
            with Panel("Pareto front", help="no other trial is better in both") as self._pareto_card:
                self._pareto = Chart("pareto", 300)
        self._configurations = ConfigurationPanel(visit.style, self._show_rows, given)
        with Panel("Trials") as card:
            with card.head:
                self._chosen = ui.label().classes("text-caption muted")
                ui.space()
                save_button(lambda: call_browser("save", self._grid.id, "trials.csv"))
            self._grid = self._table()
        card.classes("w-full")
        self._draw()

    @property
    def _is_over(self) -> bool:
        return self._read.report.run.state == "done"

    def _table(self) -> ui.aggrid:
        options: dict[str, Any] = {
            "columnDefs": trial_columns(self._read.results),
            "rowData": trial_rows(self._read.results, is_over=self._is_over),
            "suppressFieldDotNotation": True,
            "rowHeight": 28,
            "headerHeight": 32,
            "animateRows": False,
            ":getRowId": "p => p.data.id",
            ":onCellKeyDown": "p => ropewalkTable.key(p)",
        }
        return ui.aggrid(options, theme="quartz", auto_size_columns=False).style("height: 420px")

    async def refresh(self) -> None:
        """Read the search again if something has changed in the store."""
        pulse = await self._reader.read(lambda store: store.pulse())
        if pulse == self._pulse:
            return
        self._pulse = pulse
        id = self._read.report.run.id
        read = await self._reader.read(lambda store: _or_invalid(lambda: self._searches.read(store, id)))
        if isinstance(read, str):
            return
        if read.report.run != self._read.report.run or read.results.to_records() != self._read.results.to_records():
            self._read = replace(read, shares=self._read.shares)
            self._draw()
            self._show_rows()
            await self.weigh()

    async def weigh(self) -> None:
        """Compute the importances, and draw what shows them."""
        read = self._read
        shares = await self._reader.read(lambda store: self._searches.importances(read))
        if shares != self._read.shares or not self._is_weighed:
            self._read, self._is_weighed = replace(self._read, shares=shares), True
            self._draw_charts()

    def _draw(self) -> None:
        read = self._read
        self._header.show(read.report)
        counts = state_counts([one.state for one in read.results], is_over=self._is_over)
        with contextlib.suppress(SearchFailed):
            best = read.results.best
            values = ", ".join(f"{name}={_short(value)}" for name, value in best.hyperparameters.items())
            counts += f" · best {read.results.metrics[0]} {best.best:.5g}: trial {best.number} ({values})"
        self._summary.set_text(escaped(counts))
        self._draw_charts()

    def _draw_charts(self) -> None:
        read, style = self._read, self._visit.style
        self._history.show(history(history_data(read.results, is_over=self._is_over), style))
        if self._is_weighed:
            self._importance.show(importance({"shares": read.shares}, style))
        self._rungs.show(rungs(read.rungs, style) if read.rungs else {})
        self._rungs_card.set_visibility(bool(read.rungs))
        pairs = pareto_data(read.results)
        self._pareto.show(pareto(pairs, style) if pairs else {})
        self._pareto_card.set_visibility(bool(pairs))
        self._configurations.show(read.results, read.shares)

    def _show_rows(self) -> None:
        rows, numbers = trial_rows(self._read.results, is_over=self._is_over), self._configurations.numbers
        chosen = rows if numbers is None else [row for row in rows if row["number"] in numbers]
        self._chosen.set_text("" if numbers is None else f"{len(chosen)} of {len(rows)} trials are selected")
        self._grid.run_grid_method("setGridOption", "rowData", chosen)  # pyright: ignore[reportUnknownMemberType]

    async def _act(self, action: RunAction) -> None:
        what = f"{action.name} {self._read.report.run.name}"
        is_done = await carry_out(self._visit, self._reader, self._actions, what, lambda store: perform(store, action))
        if action.name == "delete" and is_done:
            ui.navigate.to("/searches")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, default=str)


__all__ = ["SearchReader", "add_search_pages"]
