"""`Chart`: a picture in the page, with buttons that save it as PNG and its data as CSV."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from nicegui import ui
from nicegui.events import GenericEventArguments

from ropewalk.escaping import escaped, safe_cell
from ropewalk.page.browser import call_browser
from ropewalk.page.style import Option

_NOTHING = "no data yet"
_BYTES_PER_S = 50_000
_LONGEST_PAUSE_S = 3.0
"""A picture is due again after its bytes by the rate, and after this at the latest: what is large changes slowly."""


class Chart:
    """A chart of ECharts. Make it where it stands; `show` replaces its option.

    Args:
        title: of the files that are saved.
        height: in pixels.
        option: the first one; without one it says that there is nothing yet.
        waiting: what it says instead, until it is told to show something.
        nothing: what it says while there is nothing to show.
        rows: returns what is saved as CSV, the head first; by default the points of the option.
        on_seen: called when it comes into sight, to show what was not worth showing before.

    Attributes:
        is_seen: whether it is on the screen, in a tab that is shown.
    """

    def __init__(
        self,
        title: str,
        height: int,
        option: Option | None = None,
        waiting: str = "",
        nothing: str = _NOTHING,
        rows: Callable[[], Sequence[Sequence[object]]] | None = None,
        on_seen: Callable[[], Awaitable[None] | None] | None = None,
    ) -> None:
        self.is_seen = True
        self._on_seen = on_seen
        self._due_at = 0.0
        self._title = title
        self._rows = rows
        self._words = nothing
        self._height = height
        self._shown: Option | None = None
        with ui.element("div").classes("relative-position w-full"):
            self.element = _Canvas().style(f"height:{height}px").classes("w-full")
            self.element.props["tabindex"], self.element.props["role"] = "0", "img"  # keys zoom, see frame.py
            self.element.props["aria-label"] = escaped(title)
            self.element.on("seen", self._see)
            self._nothing = ui.label(waiting or nothing).classes("muted absolute-center text-center")
            with ui.row().classes("rw-save"):
                for icon, what, save in (("image", "PNG", self._save_png), ("table_view", "CSV", self._save_csv)):
                    words = f'flat round dense size="xs" title="save as {what}" aria-label="save as {what}"'
                    ui.button(icon=icon, on_click=save).props(words).classes("muted")
        if option:
            self.show(option)

    @property
    def option(self) -> Option | None:
        """What it shows; None for nothing."""
        return self._shown

    @property
    def is_due(self) -> bool:
        """Whether it is worth making a new option now: somebody sees it, and the last one is old for its size."""
        return self._shown is None or (self.is_seen and time.monotonic() >= self._due_at)

    def show(self, option: Option, nothing: str = "") -> None:
        """Show an option in place of the last one; an empty one shows that there is nothing yet, or why."""
        self._nothing.set_text(nothing or self._words)
        if option == self._shown:
            return
        self.keep(option)
        num_bytes = call_browser("chart", self.element.id, option, self._height)
        self._due_at = time.monotonic() + min(_LONGEST_PAUSE_S, num_bytes / _BYTES_PER_S)

    def set_height(self, height: int) -> None:
        """Change the height, in pixels; it is seen with the next option."""
        self._height = height

    def keep(self, option: Option) -> None:
        """Keep an option to save it; its maker sends it to the browser, since it is large and changes in parts."""
        self._shown = option or None
        self._nothing.set_visibility(not option)

    async def _see(self, event: GenericEventArguments) -> None:
        self.is_seen = event.args is True
        if self.is_seen and self._on_seen and (drawn := self._on_seen()):
            await drawn

    def _save_png(self) -> None:
        name = json.dumps(f"{self._title}.png").replace("<", "\\u003c")
        ui.run_javascript(
            f"const c = getElement({self.element.id}).chart; const a = document.createElement('a');"
            "const backgroundColor = getComputedStyle(document.body).backgroundColor;"
            f"a.href = c.getDataURL({{pixelRatio: 2, backgroundColor}}); a.download = {name}; a.click();"
        )

    def _save_csv(self) -> None:
        rows = self._rows() if self._rows else point_rows(self._shown or {})
        ui.download.content(as_csv(rows), f"{self._title}.csv")


class _Canvas(ui.echart):
    """A chart that is drawn by our script: NiceGUI would wrap, compare and send each number of an option by itself."""

    def __init__(self) -> None:
        super().__init__({})  # pyright: ignore[reportUnknownMemberType]
        self._update_method = None  # it would draw its own option, which stays empty


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, without formulas."""
    lines = io.StringIO()
    csv.writer(lines).writerows([safe_cell(value) for value in row] for row in rows)
    return lines.getvalue()


def point_rows(option: Mapping[str, Any]) -> list[list[object]]:
    """Return a row for each point of an option's series: names of the series and of the point, and its values."""
    rows: list[list[object]] = [["series", "point", "values"]]
    categories = _categories(option)
    for series in cast("Sequence[Mapping[str, Any]]", option.get("series", ())):
        points = cast("Sequence[Any]", series.get("data", series.get("nodes", ())))
        for number, point in enumerate(points):
            name, values = _named(point)
            if len(values) == 1 and not name and number < len(categories):
                name = str(categories[number])
            rows.append([series.get("name", ""), name, *values])
        for link in cast("Sequence[Mapping[str, Any]]", series.get("links", ())):
            ends = [_named(points[link[end]])[0].split(", ")[0] for end in ("source", "target")]
            rows.append([series.get("name", ""), " to ".join(ends), link.get("label", {}).get("formatter", "")])
    return rows


def _named(point: object) -> tuple[str, list[object]]:
    """Return the name and the values of a point, a bar or a line."""
    if not isinstance(point, Mapping):
        return "", _flat(point)
    given = cast("Mapping[str, Any]", point)
    return str(given.get("name", "")), _flat(given.get("value", given.get("coords")))


def _flat(value: object) -> list[object]:
    if not isinstance(value, list | tuple):
        return [value]
    return [one for part in cast("Sequence[object]", value) for one in _flat(part)]


def _categories(option: Mapping[str, Any]) -> Sequence[object]:
    axes: list[Any] = [option.get(name) for name in ("xAxis", "yAxis")]
    found: list[Sequence[object]] = [
        axis["data"] for axis in axes if isinstance(axis, dict) and cast("Option", axis).get("type") == "category"
    ]
    return found[0] if len(found) == 1 else ()
