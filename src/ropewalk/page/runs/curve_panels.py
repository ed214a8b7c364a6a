"""`CurvePanels`: the curves of one or more runs, a chart for each metric, with their controls.

controls ─▶ CurveView ─┐
zoom of a chart ───────┴─▶ thread: read, smooth, cut, decimate ─▶ option ─▶ chart
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from nicegui import ui

from ropewalk.escaping import escaped
from ropewalk.page.browser import remember_entries
from ropewalk.page.chart import Chart
from ropewalk.page.frame import Visit
from ropewalk.page.pictures.curves import curves
from ropewalk.page.runs.curve_data import CurveReader, CurveRun, CurveView, SeriesName
from ropewalk.page.runs.layout import tiles
from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable
from ropewalk.tracking.store.rows import SeriesRow

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_HEIGHT, _LARGE_HEIGHT = 230, 560
_POINTS, _LARGE_POINTS = 1000, 3000
"""Points of each run in a chart: about two for each pixel."""
_NOTHING_FINITE = "nothing to draw: no value is finite"
_NOTHING_ON_LOG = "nothing to draw: no finite value is above 0, where a logarithmic axis begins"
_MOST_CHARTS = 60
_SECTIONS_FROM = 12
"""More metrics than these are shown in a section for each group."""
_SYSTEM = "system"

# A drag zooms into a part of the x axis, and a double click shows the whole again.
_PREPARE = """() => {
  const c = getElement(%d)?.chart;
  const n = c?.getOption()?.series?.length;
  if (!c || !n || c.ropewalkSeries === n) return;
  const isFirst = c.ropewalkSeries === undefined;
  c.ropewalkSeries = n;
  c.dispatchAction({type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: true});
  if (isFirst) c.getZr().on("dblclick", () => c.dispatchAction({type: "dataZoom", start: 0, end: 100}));
}"""
_ZOOMED = """() => {
  const c = getElement(%d)?.chart;
  const axis = c?.getModel()?.getComponent("xAxis", 0)?.axis;
  const zoom = c?.getOption()?.dataZoom?.[0];
  if (!axis || !zoom) return;
  const [first, last] = axis.scale.getExtent();
  emit(zoom.start < 0.001 && zoom.end > 99.999 ? null : [first, last]);
}"""


Window = tuple[float, float]
"""First and last place of a part of the x axis."""


@dataclass(eq=False)
class _MetricChart:
    """The chart of one metric."""

    key: SeriesName
    card: ui.card
    chart: Chart
    note: ui.label
    max_points: int = _POINTS
    window: Window | None = None
    """The part of the x axis that is shown, in steps or seconds; None for the whole."""
    told: Window | None = None
    """The part that the browser shows by itself: it keeps that with the next option, unless it is told another one."""
    unit: float = 1.0
    """Steps or seconds of a unit of the x axis."""
    limits: object = None
    """Both ends of the whole x axis. If they change, the browser would keep the part in per cent of the whole."""
    drawn: object = None
    """What it was drawn from; it is drawn again if that has changed."""
    runs: list[tuple[CurveRun, SeriesRow]] = field(default_factory=list[tuple[CurveRun, SeriesRow]])


class CurvePanels:
    """The curves of runs. Make it where they stand, and call `refresh` now and then.

    Args:
        reader: reads the store.
        points: reads points, and keeps them.
        visit: for its colours.
        runs: the runs.
        shows: which groups of metrics are shown.
        changed: called with the settings for the address of the page.
        view: how curves are shown at first.
        given: entries of the address of the page: the zoom of each chart among them, which is kept there.
        hidden: ids of runs that are not drawn now; may change.
        found: the entry of the address for what the metrics are filtered by.
    """

    def __init__(
        self,
        reader: StoreReader,
        points: CurveReader,
        visit: Visit,
        runs: Sequence[CurveRun],
        *,
        shows: Callable[[str], bool] = lambda group: group != _SYSTEM,
        changed: Callable[[CurveView], None] = lambda view: None,
        view: CurveView | None = None,
        given: Mapping[str, str] = MappingProxyType({}),
        found: str = "metrics",
        hidden: Collection[str] = (),
    ) -> None:
        self._reader, self._points, self._visit = reader, points, visit
        self.runs = list(runs)
        self._hidden = hidden
        self._shows, self._changed = shows, changed
        self._view = view or CurveView()
        self._given, self._found = given, found
        self._charts: dict[SeriesName, _MetricChart] = {}
        self._large: _MetricChart | None = None
        """The one that is enlarged now."""
        self._sections: dict[str, ui.element] = {}
        self._is_sectioned = self._has_groups = False
        self._controls()
        self._nothing = ui.label("No metric was logged yet: `run.log(loss=loss)` logs one.").classes("muted")
        self._area = ui.column().classes("w-full").style("gap: 12px")

    # --- controls -----------------------------------------------------------------------------------------------------

    def _controls(self) -> None:
        with ui.row().classes("items-center w-full q-gutter-x-md"):
            self._filter = ui.input(
                placeholder="find metrics", value=self._given.get(self._found, ""), on_change=self._find_charts
            )
            self._filter.props('dense outlined clearable type=search aria-label="find metrics"').style("width: 170px")
            with ui.row().classes("items-center no-wrap q-gutter-x-sm"):
                ui.label("smoothing").classes("muted")
                slider = ui.slider(min=0, max=0.99, step=0.01, value=self._view.smoothing)
                slider.props('dense aria-label="smoothing"').style("width: 140px")
                value = ui.label(f"{self._view.smoothing:.2f}").classes("mono")
                slider.on_value_change(lambda e: value.set_text(f"{e.value:.2f}"))
                slider.on("change", lambda: self._change(smoothing=slider.value or 0.0))
            axis = ui.toggle({"step": "step", "time": "time"}, value=self._view.x)
            axis.props("dense no-caps unelevated size=12px").on_value_change(lambda e: self._change(x=e.value))
            ui.checkbox("log x", value=self._view.log_x).props("dense").on_value_change(
                lambda e: self._change(log_x=e.value)
            )
            ui.checkbox("log y", value=self._view.log_y).props("dense").on_value_change(
                lambda e: self._change(log_y=e.value)
            )
            ui.label("drag to zoom, double click to see all").classes("text-caption muted")

    async def _change(self, **change: Any) -> None:
        before = self._view
        self._view = replace(before, **change)
        if (before.x, before.log_x) != (self._view.x, self._view.log_x):
            for key, one in self._charts.items():
                if one.window:
                    one.window = None
                    remember_entries({zoom_entry(key): ""})
        self._changed(self._view)
        await self.refresh()

    async def _find_charts(self) -> None:
        remember_entries({self._found: self._filter.value or ""})
        for one in self._charts.values():
            one.card.set_visibility(self._is_found(one.key))
        await self.refresh()  # which draws those that are found now, and were too many before

    def _is_found(self, key: SeriesName) -> bool:
        return str(self._filter.value or "").lower() in "/".join(key).lower()

    # --- charts -------------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the series of the runs, and draw the charts that have changed."""
        runs = [run for run in self.runs if run.id not in self._hidden]
        try:
            found = await self._reader.read(lambda store: [(run, store.series(run.id)) for run in runs])
        except StoreUnreadable:
            return  # the charts stay, and the next refresh tries again
        by_key: dict[SeriesName, list[tuple[CurveRun, SeriesRow]]] = {}
        for run, series in found:
            for one in series:
                if self._shows(one.group):
                    by_key.setdefault((one.group, one.name), []).append((run, one))
        if not self._charts:
            self._is_sectioned = len(by_key) > _SECTIONS_FROM
            self._has_groups = len({group for group, _ in by_key}) > 1
        wanted = [key for key in by_key if self._is_found(key)]
        num_drawn = sum(key in self._charts for key in wanted)
        for key in sorted(wanted, key=lambda key: (key[0] == _SYSTEM, key[0] != "", key)):
            if key not in self._charts and num_drawn < _MOST_CHARTS:
                self._charts[key] = self._make(key)
                self._charts[key].window = window_of(self._given.get(zoom_entry(key), ""))
                num_drawn += 1
        self._nothing.set_visibility(not by_key or num_drawn < len(wanted))
        if num_drawn < len(wanted):
            self._nothing.set_text(f"{num_drawn} of {len(wanted)} metrics are drawn; find the others by their names.")
        for one in [*self._charts.values(), *([self._large] if self._large else [])]:
            one.runs = by_key.get(one.key, [])
            await self._draw(one)

    def _make(self, key: SeriesName) -> _MetricChart:
        group = key[0] if self._is_sectioned else ""
        if group not in self._sections:
            with self._area:
                if group or self._sections:
                    ui.label(escaped(group) or "metrics").classes("text-subtitle2 text-bold q-mt-sm")
                self._sections[group] = tiles(400, fill=True)
        with self._sections[group]:
            return self._card(key, _HEIGHT, _POINTS)

    def _card(self, key: SeriesName, height: int, max_points: int) -> _MetricChart:
        card = ui.card().classes("panel curve-card").props("flat").style("min-width: 0; gap: 0")
        with card:
            with ui.row().classes("items-baseline no-wrap w-full q-gutter-x-sm").style("padding-right: 76px"):
                words = key[1] if self._is_sectioned or not (key[0] and self._has_groups) else f"{key[0]}/{key[1]}"
                ui.label(escaped(words)).classes("text-bold ellipsis").props["title"] = escaped(words)
                note = ui.label("").classes("text-caption muted ellipsis curve-note")
            if height == _HEIGHT:
                ui.button(icon="open_in_full", on_click=lambda: self._enlarge(key)).props(
                    'flat round dense size="xs" title="larger" aria-label="larger"'
                ).classes("muted curve-larger")
            chart = Chart(escaped(key[1]), height, on_seen=lambda: self._draw(one))
        one = _MetricChart(key, card, chart, note, max_points)
        chart.element.on("chart:finished", js_handler=_PREPARE % chart.element.id)
        chart.element.on(
            "chart:datazoom", lambda e: self._zoom(one, e.args), js_handler=_ZOOMED % chart.element.id,
            throttle=0.15, leading_events=False,
        )  # fmt: skip
        return one

    async def _zoom(self, one: _MetricChart, given: Any) -> None:
        found = cast("list[Any]", given) if isinstance(given, list) else []
        values = [float(value) for value in found if isinstance(value, int | float)]
        one.window = one.told = (values[0] * one.unit, values[1] * one.unit) if len(values) == 2 else None
        remember_entries({zoom_entry(one.key): f"{one.window[0]:.6g}:{one.window[1]:.6g}" if one.window else ""})
        await self._draw(one)

    async def _enlarge(self, key: SeriesName) -> None:
        with ui.dialog(value=True).props("maximized") as dialog, ui.card().classes("w-full"):
            with ui.row().classes("w-full justify-end"):
                ui.button(icon="close", on_click=dialog.close).props('flat round dense aria-label="close"')
            one = self._large = self._card(key, _LARGE_HEIGHT, _LARGE_POINTS)
            one.card.classes("w-full")
        small = self._charts[key]
        one.runs, one.window = small.runs, small.window

        async def shrink() -> None:
            self._large = None
            dialog.delete()
            small.window = one.window
            await self._draw(small)

        dialog.on("hide", shrink)
        await self._draw(one)

    async def _draw(self, one: _MetricChart) -> None:
        counts = tuple((run.id, series.count) for run, series in one.runs)
        wanted = (counts, self._view, one.window)
        if wanted == one.drawn or not (one.chart.is_seen or one.drawn is None):
            return
        one.drawn = wanted
        if not one.runs:
            one.chart.show({})
            return
        runs, view, window = one.runs, self._view, one.window

        def draw(store: RunStore) -> tuple[dict[str, Any], dict[str, Any]]:
            data = self._points.chart(store, runs, view, window, one.max_points)
            return data, curves({**data, "legend": one.max_points == _LARGE_POINTS}, self._visit.style)

        try:
            data, option = await self._reader.read(draw)
        except StoreUnreadable:
            one.drawn = None
            return
        if one.drawn != wanted:  # something else was asked for in the meantime, and may have been drawn
            return
        if window is not None and not option:  # nothing can be drawn in this part, which an address may have named
            one.window = one.drawn = None
            remember_entries({zoom_entry(one.key): ""})
            await self._draw(one)
            return
        before, unit, limits = one.chart.option or {}, float(data["unit"]), (data["x"], data["range"])
        is_same = (window, limits) == (one.told, one.limits)
        if window is not None and not (is_same and len(before.get("series", ())) == len(option.get("series", ()))):
            # The browser does not know it, or would lose it: a picture with another number of lines is drawn anew.
            option["dataZoom"][0] |= {"startValue": window[0] / unit, "endValue": window[1] / unit}
        elif one.told is not None and window is None and option:
            option["dataZoom"][0] |= {"start": 0, "end": 100}
        one.told, one.unit, one.limits = window, unit, limits
        one.chart.show(option, _NOTHING_ON_LOG if view.log_x or view.log_y else _NOTHING_FINITE)
        one.note.set_text(_note(one.runs))


def _note(runs: Sequence[tuple[CurveRun, SeriesRow]]) -> str:
    if len(runs) != 1:
        return ""
    series = runs[0][1]
    nans = f", {series.num_nan:,} NaN" if series.num_nan else ""
    return f"{series.last:.5g}  ({series.count:,} points{nans})"


def view_of(given: Any) -> CurveView:
    """Return how curves are shown, from the parameters of a URL."""
    try:
        smoothing = min(0.99, max(0.0, float(given.get("smoothing", "0"))))
    except ValueError:
        smoothing = 0.0
    x = "time" if given.get("x") == "time" else "step"
    return CurveView(smoothing, x, given.get("log_x") == "1", given.get("log_y") == "1")


def zoom_entry(key: SeriesName) -> str:
    """Return the name of the entry of an address that holds the zoom of a metric's chart."""
    return f"zoom {key[0]}/{key[1]}"


def window_of(text: str) -> Window | None:
    """Return the part of the x axis that an entry of an address names; None if it names none."""
    first, _, last = text.partition(":")
    try:
        window = float(first), float(last)
    except ValueError:
        return None
    return window if window[0] < window[1] and all(map(math.isfinite, window)) else None


def remember(view: CurveView) -> None:
    """Put how curves are shown into the address of the page."""
    entries = {"smoothing": f"{view.smoothing:g}" if view.smoothing else "", "x": "time" if view.x == "time" else "",
               "log_x": "1" if view.log_x else "", "log_y": "1" if view.log_y else ""}  # fmt: skip
    remember_entries(entries)


__all__ = ["CurvePanels", "remember", "view_of", "window_of", "zoom_entry"]
