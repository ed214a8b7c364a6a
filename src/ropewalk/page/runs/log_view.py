"""`LogView`: the output of a run's attempts in the page, with search, level and follow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from nicegui import ui

from ropewalk.page.browser import remember_entries
from ropewalk.page.frame import Visit
from ropewalk.page.log_scan import LEVELS, LogScan
from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable
from ropewalk.tracking.kept_output import output_files

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_LINES = 500
_MOST_LINES = 20_000


class LogView:
    """The logs of one run. Make it where they stand, and call `refresh` now and then.

    Args:
        reader: reads the store.
        visit: for its colours.
        run: id of the run.
        folder: its folder.
        given: entries of the address of the page, which keeps what is chosen here.
    """

    def __init__(self, reader: StoreReader, visit: Visit, run: str, folder: str, given: Mapping[str, str]) -> None:
        self._reader, self._style, self._run, self._folder = reader, visit.style, run, folder
        self._scan: LogScan | None = None
        self._num_lines = _LINES
        self._attempts: list[int] = []
        self._first = given.get("attempt", "")
        with ui.row().classes("items-center w-full q-gutter-x-md"):
            self._attempt = ui.select({}, on_change=self.restart).props('dense outlined options-dense label="attempt"')
            self._attempt.style("width: 150px")
            self._text = ui.input(placeholder="search", value=given.get("find", ""), on_change=self.restart)
            self._text.props('dense outlined clearable debounce=300 type=search aria-label="search in the log"')
            self._text.style("width: 260px")
            names = {"debug": "all levels", "info": "info and worse", "warning": "warnings, errors", "error": "errors"}
            level = given.get("level", "")
            self._level = ui.select(
                {level: names[level] for level in LEVELS},
                value=level if level in LEVELS else LEVELS[0],
                on_change=self.restart,
            )
            self._level.props('dense outlined options-dense aria-label="level"').style("width: 160px")
            self._follow = ui.switch("follow", value=True)
            self._count = ui.label().classes("muted")
            ui.space()
            self._earlier = ui.button("earlier lines", on_click=self._more).props("flat dense no-caps")
            self._save = ui.link("save", "").classes("q-mr-sm")
        self._area = (
            ui.scroll_area().classes("w-full panel log-lines").style("height: calc(100vh - 330px); min-height: 260px")
        )
        self._area.set_visibility(False)
        visit.when_gone(self._close)

    async def refresh(self) -> None:
        """Look for attempts and lines that were added."""
        folder = self._folder
        try:
            found = await self._reader.read(lambda store: dict(output_files(folder)))
        except StoreUnreadable:
            return
        if list(found) != self._attempts:
            self._attempts = list(found)
            asked = next((number for number in found if str(number) == self._first), None)
            self._first = ""
            options = {number: f"attempt {number}" for number in found}
            value = max(found, default=None) if asked is None else asked
            self._attempt.set_options(options, value=value)  # pyright: ignore[reportUnknownMemberType]
            return  # `restart` reads it
        if self._scan is None:
            if not found:
                self._count.set_text("No output was kept. That of a script is wherever it was started.")
                self._earlier.set_visibility(False)
                self._save.set_visibility(False)
            return
        if self._follow.value:
            await self._read(self._scan)

    async def restart(self) -> None:
        """Read the log anew: something else is searched for."""
        self._close()
        number = self._attempt.value
        if number is None:
            return
        folder, text = self._folder, str(self._text.value or "")
        level, num = str(self._level.value), self._num_lines
        is_newest = number == max(self._attempts, default=number)
        remember_entries(
            {
                "find": text,
                "level": "" if level == LEVELS[0] else level,
                "attempt": "" if is_newest else str(number),
            }
        )

        def begin(store: RunStore) -> LogScan | OSError:
            try:
                return LogScan(Path(dict(output_files(folder))[number]), text, level, num)
            except (OSError, KeyError) as error:
                return OSError(str(error))

        try:
            scan = await self._reader.read(begin)
        except StoreUnreadable as error:
            self._count.set_text(str(error))
            return
        if isinstance(scan, OSError):
            self._count.set_text(f"it cannot be read: {scan}")
            return
        self._scan = scan
        self._area.set_visibility(True)
        self._save.set_visibility(True)
        self._save.props["href"] = f"/output/{quote(self._run, safe='')}/{number}"
        self._show(scan)
        await self._read(scan)

    async def _more(self) -> None:
        self._num_lines = min(_MOST_LINES, self._num_lines * 4)
        await self.restart()

    async def _read(self, scan: LogScan) -> None:
        try:
            has_new = bool(await self._reader.read(lambda store: scan.read() if scan is self._scan else []))
        except (StoreUnreadable, OSError):
            return
        if has_new and scan is self._scan:
            self._show(scan)

    def _show(self, scan: LogScan) -> None:
        self._area.clear()
        with self._area, ui.column().classes("w-full q-gutter-none").style("gap: 0"):
            for level, group in itertools.groupby(scan.lines, key=lambda line: line.level):
                text = "\n".join(line.text for line in group)
                ui.label(text).classes("mono").style(f"color: {self._color(level)}; overflow-wrap: anywhere")
        num = len(scan.lines)
        is_part = scan.num_found > num or not scan.is_whole
        nothing = "no line is like that" if self._text.value or self._level.value != "debug" else "nothing was printed"
        self._count.set_text(f"the last {num:,} lines" if is_part else f"{num:,} lines" if num else nothing)
        self._earlier.set_visibility(is_part and self._num_lines < _MOST_LINES)
        if self._follow.value:
            self._area.scroll_to(percent=1.0)

    def _color(self, level: str) -> str:
        style = self._style
        return {"error": style.bad, "warning": style.warn, "debug": style.muted}.get(level, style.text)

    def _close(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()


__all__ = ["LogView"]
