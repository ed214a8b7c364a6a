"""The configurations of a search: parallel coordinates, of which a part is selected by a brush or by fields.

brush ──▶ ranges ──▶ fields, address, table of trials
fields ──▶ ranges ──▶ brush, address, table of trials
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from ropewalk.escaping import escaped
from ropewalk.page.browser import remember_entries
from ropewalk.page.chart import Chart
from ropewalk.page.frame import Panel
from ropewalk.page.pictures.parallel import parallel
from ropewalk.page.runs.search_data import parallel_data
from ropewalk.page.runs.trial_ranges import (
    Axis,
    Ranges,
    address_of,
    axes_of,
    intervals_of,
    is_selected,
    ranges_in,
    ranges_of,
)
from ropewalk.page.style import Style
from ropewalk.search.results import SearchResults

ENTRY = "selected"
"""Of the address: the ranges."""
_HEIGHT = 340

_BRUSHED = """() => {
  const ranges = [];
  getElement(%d)?.chart?.getModel()?.eachComponent("parallelAxis", axis => ranges.push(axis.activeIntervals));
  emit(ranges);
}"""


class ConfigurationPanel:
    """The panel. Make it where it stands; `show` draws trials.

    Args:
        style: of the picture.
        changed: called after the selection has changed.
        given: entries of the address of the page.
    """

    def __init__(self, style: Style, changed: Callable[[], None], given: Mapping[str, str]) -> None:
        self._style, self._changed, self._given = style, changed, given.get(ENTRY, "")
        self._axes: list[Axis] = []
        self._rows: list[tuple[int, list[Any]]] = []
        self._ranges: Ranges = {}
        self._shows: dict[str, Callable[[list[Any] | None], None]] = {}
        self._limits_of: dict[str, list[ui.input]] = {}
        with Panel("Configurations", help="drag along an axis to select trials; click it to select all again") as card:
            with card.head:
                ui.space()
                self._clear = ui.button("Select all", on_click=lambda: self._set({}))
                self._clear.props("flat dense no-caps size=sm").set_visibility(False)
                button = ui.button("Select by values", icon="tune", on_click=self._toggle)
                button.props("flat dense no-caps size=sm")
            self._chart = Chart("configurations", _HEIGHT, nothing="no data yet: no trial has reported")
            self._fields = ui.element("div").classes("rw-ranges")
            self._fields.set_visibility(bool(self._given))
        self._chart.element.on(
            "chart:axisareaselected", lambda e: self._set(ranges_of(self._axes, e.args)),
            js_handler=_BRUSHED % self._chart.element.id, throttle=0.1, leading_events=False,
        )  # fmt: skip

    @property
    def numbers(self) -> set[int] | None:
        """Numbers of the trials that are selected; None for all."""
        if not self._ranges:
            return None
        return {number for number, row in self._rows if is_selected(row, self._axes, self._ranges)}

    def show(self, results: SearchResults, shares: Mapping[str, float]) -> None:
        """Draw trials.

        Args:
            results: the trials.
            shares: importance of each hyperparameter; the most important ones come first.
        """
        data, numbers = parallel_data(results, shares)
        self._rows = list(zip(numbers, data["rows"], strict=True))
        axes = axes_of(data)
        is_first = not self._axes
        is_same = [(axis.name, axis.kinds) for axis in axes] == [(axis.name, axis.kinds) for axis in self._axes]
        self._axes = axes
        if not is_same:
            self._draw_fields()
        for axis in axes:
            for field, limit in zip(self._limits_of.get(axis.name, ()), (axis.least, axis.most), strict=False):
                field.props["placeholder"] = f"{limit:.4g}"
        self._chart.show(parallel(data, self._style))
        if is_first and self._given:
            self._set(ranges_in(self._given, axes))
        elif self._ranges:  # a picture that is drawn anew has no brush
            self._brush()

    def _set(self, ranges: Ranges, axis: str = "") -> None:
        """Select by ranges; the fields of the axis that is being written in stay as they are."""
        if ranges == self._ranges:
            return
        self._ranges = ranges
        self._clear.set_visibility(bool(ranges))
        for name, show in self._shows.items():
            if name != axis:
                show(ranges.get(name))
        self._brush()
        remember_entries({ENTRY: address_of(ranges)})
        self._changed()

    def _brush(self) -> None:
        ui.run_javascript(
            f"ropewalkTable.brush({self._chart.element.id}, {intervals_of(self._axes, self._ranges)})"
        )  # numbers alone

    def _toggle(self) -> None:
        self._fields.set_visibility(not self._fields.visible)

    # --- fields -------------------------------------------------------------------------------------------------------

    def _draw_fields(self) -> None:
        self._shows, self._limits_of = {}, {}
        self._fields.clear()
        with self._fields:
            for axis in self._axes:
                with ui.element("div").classes("rw-range"):
                    ui.label(escaped(axis.name)).classes("rw-small rw-cell").props["title"] = escaped(axis.name)
                    with ui.row().classes("no-wrap items-center w-full").style("gap: 4px"):
                        self._shows[axis.name] = self._kinds(axis) if axis.kinds is not None else self._limits(axis)
                self._shows[axis.name](self._ranges.get(axis.name))

    def _kinds(self, axis: Axis) -> Callable[[list[Any] | None], None]:
        field = ui.select(list(axis.kinds or ()), multiple=True, value=[]).classes("col")
        field.props("dense outlined options-dense clearable").props["aria-label"] = escaped(axis.name)
        field.on_value_change(lambda e: self._set_one(axis.name, [*e.value] if e.value else None))

        def show(chosen: list[Any] | None) -> None:
            field.set_value([kind for kind in axis.kinds or () if kind in (chosen or ())])

        return show

    def _limits(self, axis: Axis) -> Callable[[list[Any] | None], None]:
        fields = self._limits_of[axis.name] = []
        for word in ("at least", "at most"):
            field = ui.input(validation={"not a number": _is_number}).classes("col")
            field.props("dense outlined hide-bottom-space debounce=300")
            field.props["aria-label"] = f"{escaped(axis.name)} {word}"
            fields.append(field)

        def read() -> None:
            if all(_is_number(field.value) for field in fields):
                limits = [float(field.value) if field.value else None for field in fields]
                self._set_one(axis.name, None if limits == [None, None] else limits)

        def show(chosen: list[Any] | None) -> None:
            for field, limit in zip(fields, chosen or (None, None), strict=True):
                field.set_value("" if limit is None else f"{limit:.4g}")

        for field in fields:
            field.on_value_change(read)
        return show

    def _set_one(self, name: str, chosen: list[Any] | None) -> None:
        others = {other: value for other, value in self._ranges.items() if other != name}
        self._set({**others, name: chosen} if chosen else others, name)


def _is_number(text: str | None) -> bool:
    try:
        return not text or math.isfinite(float(text))
    except ValueError:
        return False


__all__ = ["ConfigurationPanel"]
