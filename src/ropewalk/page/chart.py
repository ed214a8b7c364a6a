"""`Chart`: a picture in the page, with buttons that save it as PNG and its data as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from nicegui import ui

from ropewalk.page.style import Option

_NOTHING = "nothing yet"


class Chart:
    """A chart of ECharts. Make it where it stands; `show` replaces its option.

    Args:
        title: of the files that are saved.
        height: in pixels.
        option: the first one; without one it says that there is nothing yet.
        waiting: what it says instead, until it is told to show something.
    """

    def __init__(self, title: str, height: int, option: Option | None = None, waiting: str = _NOTHING) -> None:
        self._title = title
        self._height = height
        self._shown: Option | None = None
        with ui.element("div").classes("relative-position w-full"):
            self.element = ui.echart({}).style(f"height:{height}px").classes("w-full")
            self._nothing = ui.label(waiting).classes("muted absolute-center")
            with ui.row().classes("absolute-top-right q-gutter-none"):
                for icon, what, save in (("image", "PNG", self._save_png), ("table_view", "CSV", self._save_csv)):
                    words = f'flat round dense size="xs" title="save as {what}" aria-label="save as {what}"'
                    ui.button(icon=icon, on_click=save).props(words).classes("muted")
        if option:
            self.show(option)

    @property
    def option(self) -> Option | None:
        """What it shows; None for nothing."""
        return self._shown

    def show(self, option: Option) -> None:
        """Show an option in place of the last one; an empty one shows that there is nothing yet."""
        self._nothing.set_text(_NOTHING)
        if option == self._shown:
            return
        self._shown = option or None
        self._nothing.set_visibility(not option)
        options = cast("dict[str, Any]", self.element.options)  # pyright: ignore[reportUnknownMemberType]
        options.clear()
        options.update(option)
        self.element.update()

    def set_height(self, height: int) -> None:
        """Change the height, in pixels."""
        if height != self._height:
            self._height = height
            self.element.style(f"height:{height}px")

    def keep(self, option: Option) -> None:
        """Keep an option to save it; its maker sends it to the browser, since it is large and changes in parts."""
        self._shown = option or None
        self._nothing.set_visibility(not option)

    def _save_png(self) -> None:
        name = json.dumps(f"{self._title}.png").replace("<", "\\u003c")
        ui.run_javascript(
            f"const c = getElement({self.element.id}).chart; const a = document.createElement('a');"
            "const backgroundColor = getComputedStyle(document.body).backgroundColor;"
            f"a.href = c.getDataURL({{pixelRatio: 2, backgroundColor}}); a.download = {name}; a.click();"
        )

    def _save_csv(self) -> None:
        ui.download.content(as_csv(self._shown or {}), f"{self._title}.csv")


def as_csv(option: Mapping[str, Any]) -> str:
    """Return the data of an option's series: name of the series, and the values of each point."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["series", "values"])
    for series in cast("Sequence[Mapping[str, Any]]", option.get("series", ())):
        for point in cast("Sequence[Any]", series.get("data", series.get("nodes", ()))):
            value: Any = cast("Mapping[str, Any]", point).get("value", point) if isinstance(point, Mapping) else point
            values = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
            writer.writerow([safe_cell(series.get("name", "")), *map(safe_cell, values)])
    return lines.getvalue()


def safe_cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula (OWASP, CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
