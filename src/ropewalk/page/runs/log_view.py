"""`LogView`: the output of a run's attempts in the page, with search, level and follow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from nicegui import ui

from ropewalk.page.browser import remember_entries
from ropewalk.page.frame import Visit
from ropewalk.page.log_box import LogBox
from ropewalk.page.log_scan import LEVELS, LogScan, scanned
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
        visit: ends with the tab, and the log is closed then.
        run: id of the run.
        folder: its folder.
        given: entries of the address of the page, which keeps what is chosen here.
    """

    def __init__(self, reader: StoreReader, visit: Visit, run: str, folder: str, given: Mapping[str, str]) -> None:
        self._reader, self._run, self._folder = reader, run, folder
        self._scan: LogScan | None = None
        self._asked: object = None
        """Of the newest `restart`: what an earlier one has read is not shown any more."""
        self._num_lines = _LINES
        self._attempts: list[int] = []
        self._first = given.get("attempt", "")
        with ui.row().classes("items-center w-full q-gutter-x-md"):
            self._attempt = ui.select({}, on_change=lambda: self.restart())
            self._attempt.props('dense outlined options-dense label="attempt"').style("width: 150px")
            self._text = ui.input(placeholder="search", value=given.get("find", ""), on_change=lambda: self.restart())
            self._text.props('dense outlined clearable debounce=300 type=search aria-label="search in the log"')
            self._text.style("width: 260px")
            names = {"debug": "all levels", "info": "info and worse", "warning": "warnings, errors", "error": "errors"}
            level = given.get("level", "")
            self._level = ui.select(
                {level: names[level] for level in LEVELS},
                value=level if level in LEVELS else LEVELS[0],
                on_change=lambda: self.restart(),
            )
            self._level.props('dense outlined options-dense aria-label="level"').style("width: 160px")
            self._follow = ui.switch("follow", value=True)
            self._count = ui.label().classes("muted")
            ui.space()
            self._earlier = ui.button("earlier lines", on_click=self._more).props("flat dense no-caps")
            self._save = ui.link("save", "").classes("q-mr-sm")
        self._box = LogBox("log")
        self._box.element.style("height: calc(100vh - 330px); min-height: 260px; flex: none").set_visibility(False)
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
            await self._follow_on(self._scan)

    async def restart(self, *, is_longer: bool = False) -> None:
        """Read the log anew: something else is searched for, or more lines are.

        Args:
            is_longer: whether the lines that are shown are among those that are read.
        """
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

        self._asked = asked = object()
        self._count.set_text("reading…")

        def read(store: RunStore) -> LogScan | OSError:
            try:
                return scanned(Path(dict(output_files(folder))[number]), text, level, num)
            except (OSError, KeyError) as error:
                return OSError(str(error))

        try:
            scan = await self._reader.read(read)
        except StoreUnreadable as error:
            self._count.set_text(str(error))
            return
        if isinstance(scan, OSError):
            self._count.set_text(f"it cannot be read: {scan}")
            return
        if self._asked is not asked:
            scan.close()
            return
        self._scan = scan
        self._box.element.set_visibility(True)
        self._save.set_visibility(True)
        self._save.props["href"] = f"/output/{quote(self._run, safe='')}/{number}"
        (self._box.extend if is_longer else self._box.show)(scan.lines, text)
        self._tell_number(scan)

    async def _more(self) -> None:
        self._num_lines = min(_MOST_LINES, self._num_lines * 4)
        await self.restart(is_longer=True)

    async def _follow_on(self, scan: LogScan) -> None:
        """Show what was written since."""
        try:
            lines = await self._reader.read(lambda store: scan.read() if scan is self._scan else [])
        except (StoreUnreadable, OSError):
            return
        if lines and scan is self._scan:
            self._box.add(lines, str(self._text.value or ""))
            self._tell_number(scan)

    def _tell_number(self, scan: LogScan) -> None:
        num = len(scan.lines)
        is_part = scan.num_found > num or not scan.is_whole
        nothing = "no line is like that" if self._text.value or self._level.value != "debug" else "nothing was printed"
        self._count.set_text(f"the last {num:,} lines" if is_part else f"{num:,} lines" if num else nothing)
        self._earlier.set_visibility(is_part and self._num_lines < _MOST_LINES)

    def _close(self) -> None:
        scan, self._scan, self._asked = self._scan, None, None
        if scan is not None:
            scan.close()


__all__ = ["LogView"]
