"""`/compare?runs=ID,ID,...`: runs beside each other: settings that differ, metrics, and curves with one legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import ui
from starlette.requests import Request

from ropewalk.escaping import escaped
from ropewalk.page.browser import remember_entries
from ropewalk.page.frame import Panel, Visit
from ropewalk.page.runs.curve_data import CurveReader, CurveRun
from ropewalk.page.runs.curve_panels import CurvePanels, remember, view_of
from ropewalk.page.runs.layout import plain_table
from ropewalk.page.runs.notices import runs_frame, show_unreadable
from ropewalk.page.runs.store_reader import RESPONSE_S, StoreReader, StoreUnreadable
from ropewalk.page.runs.table_page import MOST_COMPARED
from ropewalk.tracking.run_reports import Comparison
from ropewalk.tracking.store.rows import RunRow, SeriesRow

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_REFRESH_S = 3.0
_MOST_PX = 420
"""Of the height of a table: hundreds of rows are scrolled, and do not push the curves out of sight."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """What was read of the runs."""

    comparison: Comparison
    series: dict[str, list[SeriesRow]]
    missing: list[str]


def add_compare_page(reader: StoreReader, points: CurveReader) -> None:
    """Serve `/compare`.

    Args:
        reader: reads the store.
        points: reads points, and keeps them.
    """

    @ui.page("/compare", response_timeout=RESPONSE_S)
    async def compare(request: Request) -> None:  # pyright: ignore[reportUnusedFunction]
        asked = [one for one in request.query_params.get("runs", "").split(",") if one]
        with runs_frame(request, "Compare") as visit:
            try:
                read = await reader.read(lambda store: _read(store, asked[:MOST_COMPARED], everything=True))
            except StoreUnreadable as error:
                show_unreadable(error)
                return
            for words in read.missing:
                ui.label(escaped(words)).classes("text-negative")
            if len(read.comparison.runs) < 2:
                ui.label(f"Select 2 to {MOST_COMPARED} runs in the table of runs, then Compare.")
                return
            await _draw(reader, points, visit, read, request)


async def _draw(reader: StoreReader, points: CurveReader, visit: Visit, read: _Compared, request: Request) -> None:
    runs = [CurveRun(run.id, _name(run, read.comparison.runs), run.created, at)
            for at, run in enumerate(read.comparison.runs)]  # fmt: skip
    refreshes: list[Callable[[], Any]] = []
    given = request.query_params
    hidden = {run.id for run in runs} & set(given.get("hidden", "").split(","))
    with ui.row().classes("items-center w-full q-gutter-x-md").style("row-gap: 2px"):
        for run in runs:
            _chip(run, visit, lambda: refreshes[0]() if refreshes else None, hidden)
    heads = [lambda run=run: _head(run, visit) for run in runs]
    with Panel("Settings") as card:
        with card.head:
            ui.space()
            switch = ui.switch("equal ones, too", value=given.get("equal") == "1").props("dense")
        place = ui.column().classes("w-full")

    def draw_settings() -> None:
        place.clear()
        with place:
            _settings_table(read.comparison, heads, everything=bool(switch.value))

    switch.on_value_change(lambda: remember_entries({"equal": "1" if switch.value else ""}))
    switch.on_value_change(draw_settings)
    draw_settings()
    with Panel(
        "Metrics", help="the last value, and the range; the best of each row is bold where less or more is better"
    ):
        place_of_metrics = ui.column().classes("w-full")

    def draw_metrics() -> None:
        place_of_metrics.clear()
        with place_of_metrics:
            _metrics_table(read, heads)

    draw_metrics()
    panels = CurvePanels(reader, points, visit, runs, changed=remember, view=view_of(given), given=given, hidden=hidden)
    refreshes.append(panels.refresh)
    await panels.refresh()
    pulse: object = None

    async def refresh() -> None:
        nonlocal read, pulse
        before = read
        try:
            now = await reader.read(lambda store: store.pulse())
            if now == pulse and not any(run.state == "running" for run in before.comparison.runs):
                return
            found = await reader.read(lambda store: _read(store, [run.id for run in runs], everything=True))
        except StoreUnreadable:
            return  # what is shown stays, and the next refresh tries again
        if not found.missing:
            pulse, read = now, found
            if found.comparison.config != before.comparison.config:
                draw_settings()
            if found.series != before.series:
                draw_metrics()
        await panels.refresh()

    visit.every(refresh, _REFRESH_S)


def _read(store: RunStore, asked: Sequence[str], *, everything: bool) -> _Compared:
    found: list[RunRow] = []
    missing: list[str] = []
    for ref in dict.fromkeys(asked):
        try:
            found.append(store.run(ref))
        except LookupError as error:
            missing.append(str(error))
    last = store.last_values([run.id for run in found], None)
    comparison = Comparison.of(found, last, everything=everything)
    return _Compared(comparison, {run.id: store.series(run.id) for run in found}, missing)


def _name(run: RunRow, runs: Sequence[RunRow]) -> str:
    """Return the name of a run, with its id if another one has the name, too."""
    return run.name if sum(one.name == run.name for one in runs) == 1 else f"{run.name} ({run.id[:6]})"


def _chip(run: CurveRun, visit: Visit, refresh: Callable[[], Any], hidden: set[str]) -> None:
    async def toggle(is_shown: bool) -> None:
        (hidden.discard if is_shown else hidden.add)(run.id)
        remember_entries({"hidden": ",".join(sorted(hidden))})
        if (waiting := refresh()) is not None:
            await waiting

    with ui.row().classes("items-center no-wrap").style("gap: 4px"):
        box = ui.checkbox(value=run.id not in hidden, on_change=lambda e: toggle(bool(e.value))).props("dense size=sm")
        box.props(f'aria-label="show curves of run {run.color + 1}"')
        _swatch(run, visit)
        ui.link(escaped(run.name), f"/runs/{quote(run.id, safe='')}")


def _swatch(run: CurveRun, visit: Visit) -> None:
    colors = visit.style.colors
    dash = ("solid", "dashed", "dotted")[run.color // len(colors) % 3]
    ui.element("div").style(
        f"width: 18px; height: 0; flex: none; border-top: 3px {dash} {colors[run.color % len(colors)]}"
    )


def _head(run: CurveRun, visit: Visit) -> None:
    with ui.row().classes("items-center no-wrap").style("gap: 4px; max-width: 180px"):
        _swatch(run, visit)
        ui.label(escaped(run.name)).classes("text-caption ellipsis")


def _settings_table(comparison: Comparison, heads: Sequence[Callable[[], None]], *, everything: bool) -> None:
    rows: list[list[Any]] = []
    num_equal = 0
    for name, values in comparison.config.items():
        is_equal = all(value == values[0] for value in values[1:])
        num_equal += is_equal
        if everything or not is_equal:
            rows.append([_muted(name) if is_equal else name, *("-" if value is None else value for value in values)])
    if rows:
        plain_table("settings", ("", *[""] * len(heads)), [["", *heads], *rows], most_px=_MOST_PX)
    else:
        ui.label("They do not differ in any setting.").classes("muted")
    if num_equal and not everything:
        ui.label(f"{num_equal} equal").classes("text-caption muted")


def _muted(text: str) -> Callable[[], None]:
    return lambda: ui.label(escaped(text)).classes("mono muted") and None


def _metrics_table(read: _Compared, heads: Sequence[Callable[[], None]]) -> None:
    runs = read.comparison.runs
    found: dict[tuple[str, str], dict[str, SeriesRow]] = {}
    for run in runs:
        for series in read.series[run.id]:
            if series.group != "system":
                found.setdefault((series.group, series.name), {})[run.id] = series
    rows: list[list[Any]] = []
    for (group, name), by_run in sorted(found.items()):
        own = [by_run.get(run.id) for run in runs]
        last = [None if one is None else one.last for one in own]
        best = _best(name, [value for value in last if value is not None])
        cells = [_cell(one, one is not None and one.last == best) for one in own]
        rows.append([f"{group}/{name}" if group else name, *cells])
    if rows:
        plain_table("metrics", ("", *[""] * len(heads)), [["", *heads], *rows], most_px=_MOST_PX)
    else:
        ui.label("None of them has logged a metric.").classes("muted")


def _cell(series: SeriesRow | None, is_best: bool) -> Any:
    if series is None:
        return "-"

    def draw() -> None:
        ui.label(f"{series.last:.5g}").classes(f"mono {'text-bold' if is_best else ''}")
        ui.label(f"{series.min:.4g} … {series.max:.4g}").classes("text-caption muted").style("line-height: 1.1")

    return draw


_LESS = ("loss", "error", "rmse", "mse", "mae", "perplexity", "cost", "regret")
_MORE = ("accuracy", "acc", "f1", "auc", "score", "return", "reward", "precision", "recall", "fitness")


def _best(name: str, values: Sequence[float]) -> float | None:
    """Return the best of values where the name of the metric says whether less or more is better."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return None
    words = name.lower().replace("-", "_").split("_")
    if any(word in _LESS for word in words):
        return min(known)
    return max(known) if any(word in _MORE for word in words) else None


__all__ = ["add_compare_page"]
