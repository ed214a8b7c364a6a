"""What is known of one process, in a dialog: its log, its stack, its facts; and to kill or restart it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nicegui import ui

from ropewalk.control.view import ProcessView
from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.actions import ActionFailed, Actions
from ropewalk.page.browser import call_browser
from ropewalk.page.fact_chips import FactChips
from ropewalk.page.log_box import LogBox
from ropewalk.page.log_scan import LogLine, LogScan, scanned
from ropewalk.page.style import state_group
from ropewalk.page.thing_header import notify
from ropewalk.page.watcher import Seen
from ropewalk.quantities import counted, shown_duration, shown_size

_LAST_LINES, _MOST_FOUND = 500, 1000


class ProcessDialog:
    """The dialog. Make it once; `open` shows a process in it.

    Args:
        seen: what is known of the thing.
        actions: does what the visitor asks for; None if nothing can be done here.
        may_act: whether the visitor may kill and restart.
    """

    def __init__(self, seen: Seen, actions: Actions | None, *, may_act: bool) -> None:
        self._seen = seen
        self._actions = actions
        self._may_act = may_act
        self._process = ""
        self._scan: LogScan | None = None
        self._file: Path | None = None
        self._needle = ""
        with ui.dialog() as self._dialog, ui.card().classes("rw-process q-pa-md"):
            with ui.row().classes("items-center w-full no-wrap q-gutter-x-sm"):
                self._dot = ui.element("span").classes("rw-dot")
                self._title = ui.label().classes("text-subtitle1 text-bold")
                self._words = ui.label().classes("rw-small")
                ui.space()
                for action in ("restart", "kill"):
                    self._button(action)
                ui.button(icon="close", on_click=self._dialog.close).props('flat round dense aria-label="close"')
            self._cause = ui.label().classes("rw-banner")
            self._facts = FactChips(ui.element("div").classes("rw-facts w-full"))
            with ui.tabs(on_change=lambda e: self._turn(str(e.value))).props("dense no-caps align=left") as self._tabs:
                ui.tab("log", "Log")
                if actions and "stack" in seen.view.process_actions:
                    ui.tab("stack", "Stack")
            with ui.tab_panels(self._tabs, value="log").props("keep-alive"):
                with ui.tab_panel("log"):
                    self._log_tools()
                    self._log = LogBox("log")
                with ui.tab_panel("stack"):
                    with ui.row().classes("items-center"):
                        ui.button("Take again", icon="refresh", on_click=self._take_stack).props("flat dense no-caps")
                        self._stack_note = ui.label().classes("rw-small")
                    self._stack = LogBox("stack")
        self._dialog.on_value_change(lambda e: None if e.value else self._close())

    async def open(self, process: str) -> None:
        """Show a process.

        Args:
            process: its name, as it is shown.
        """
        view = self._view(process)
        if view is None:
            ui.notify(f"There is no process {escaped(process)} any more.", type="warning")
            return
        self._close()
        self._process = view.name
        self._tabs.set_value("log")
        self._search.set_value("")
        self._log.show([])
        self._stack.show([])
        self.show(self._seen)
        self._dialog.open()
        call_browser("setHash", escaped(view.name))
        await self._open_log()

    def show(self, seen: Seen) -> None:
        """Show what is known now, if a process is open."""
        self._seen = seen
        if not self._process:
            return
        view = self._view(self._process)
        there = None if seen.gone else view
        self._show_look(state_group(there.state) if there else "muted")
        self._words.set_text(_words(there) if there else "gone; this is its last state")
        if view is None:
            return
        self._title.set_text(escaped(view.name))
        self._cause.set_text(f"Last end: {escaped(view.last_cause)}")
        self._cause.set_visibility(bool(view.last_cause))
        self._facts.show(process_facts(view))

    def _show_look(self, group: str) -> None:
        classes = f"rw-dot rw-{group}"
        if " ".join(self._dot.classes) != classes:
            self._dot.classes(replace=classes)

    async def follow(self) -> None:
        """Add the lines that were written since, if the log is open and followed."""
        scan = self._scan
        if scan is None or not self._follows.value:
            return
        try:
            lines = await asyncio.to_thread(scan.read)
        except OSError as error:
            if scan is self._scan:
                self._log_note.set_text(f"cannot be read: {error.strerror}")
            return
        if lines and scan is self._scan:
            self._log.add(lines, self._needle)
            self._tell_found(scan)

    def _log_tools(self) -> None:
        with ui.row().classes("items-center w-full q-gutter-x-sm"):
            self._search = ui.input(placeholder="search the whole log", on_change=self._find)
            self._search.props('dense outlined clearable type=search debounce=300 aria-label="search"')
            self._search.style("width:280px")
            self._follows = ui.switch("Follow", value=True).props("dense")
            self._log_note = ui.label().classes("rw-small")

    async def _open_log(self) -> None:
        if self._actions is None:
            self._log_note.set_text("logs cannot be read here")
            return
        process, id = self._process, self._seen.view.id
        self._log_note.set_text("reading…")
        try:
            files = await asyncio.to_thread(self._actions.actor.log_files, id)
        except ActionFailed as error:
            self._log_note.set_text(escaped(f"cannot be read: {error}"))
            return
        if process == self._process:
            self._file = files.get(process)
            await self._read()

    async def _find(self) -> None:
        self._needle = str(self._search.value or "")
        if self._process and self._file:
            await self._read()

    async def _read(self) -> None:
        """Show the last lines of the file, or those with the text that is searched for."""
        self._forget_scan()
        file, needle = self._file, self._needle
        if file is None:
            self._log_note.set_text("it keeps no file of output on this host")
            return
        try:
            num_lines = _MOST_FOUND if needle else _LAST_LINES
            scan = await asyncio.to_thread(scanned, file, needle, num_lines=num_lines)
        except OSError as error:
            self._log_note.set_text(escaped(f"cannot be read: {error.strerror}"))
            return
        if (file, needle) != (self._file, self._needle) or self._scan is not None:
            scan.close()
            return
        self._scan = scan
        self._tell_found(scan)
        self._log.show(scan.lines, needle)

    def _tell_found(self, scan: LogScan) -> None:
        num, file = len(scan.lines), escaped(str(self._file))
        if self._needle:
            is_all = scan.is_whole and scan.num_found == num
            self._log_note.set_text(f"{counted(num, 'line')} found{'' if is_all else ', the last ones'} in {file}")
        else:
            self._log_note.set_text(f"the last {counted(num, 'line')} of {file}" if num else f"{file} is empty")

    async def _turn(self, tab: str) -> None:
        if tab == "stack":
            await self._take_stack()

    async def _take_stack(self) -> None:
        if self._actions is None or not self._process:
            return
        process = self._process
        self._stack_note.set_text("asking…")
        try:
            stacks = await asyncio.to_thread(self._actions.actor.stacks, self._seen.view.id, process)
        except ActionFailed as error:
            self._stack_note.set_text(escaped(str(error)))
            return
        if process == self._process:
            self._stack_note.set_text("as of now; it was not stopped" if stacks else "it did not answer")
            text = "\n\n".join(stacks.values())
            self._stack.show(LogLine(line, "info") for line in escaped_lines(text.rstrip()).split("\n"))

    def _button(self, action: str) -> None:
        actions = self._actions
        if actions is None or not self._may_act or action not in self._seen.view.process_actions:
            return
        with ui.dialog() as sure, ui.card():
            ui.label(f"{action.capitalize()} this process?").classes("text-bold")
            what = ui.label()
            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=sure.close).props("flat no-caps")
                ui.button(action.capitalize(), on_click=lambda: sure.submit(True)).props(
                    "no-caps unelevated color=negative"
                )

        async def ask() -> None:
            process, id, name = self._process, self._seen.view.id, self._seen.view.name
            what.set_text(f"{escaped(process)}: what it does now is lost, and may be done again by another one.")
            if not await sure or not self._may_act:
                return
            actor = actions.actor
            notify(await actions.do(f"{action} {process} of {name}", lambda: actor.act(id, action, process)))

        icon = {"kill": "dangerous", "restart": "restart_alt"}[action]
        button = ui.button(action.capitalize(), icon=icon, on_click=ask)
        button.props("outline dense no-caps color=negative").classes("q-px-sm")

    def _view(self, process: str) -> ProcessView | None:
        return next((one for one in self._seen.view.processes if process in (one.name, escaped(one.name))), None)

    def _close(self) -> None:
        was_open = bool(self._process)
        self._file, self._process, self._needle = None, "", ""
        self._forget_scan()
        if was_open:
            call_browser("setHash", "")

    def _forget_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan:
            scan.close()

    def close(self) -> None:
        """Close the file of output; the tab is gone."""
        self._forget_scan()


def process_facts(process: ProcessView) -> dict[str, str]:
    """Return what is shown of a process, values by label."""
    facts = {
        "group": escaped(process.group),
        "host": escaped(process.host) or "this host",
        "pid": str(process.pid or ""),
        "up for": shown_duration(float(round(process.uptime_s))) if process.uptime_s else "",
        "memory": shown_size(process.memory_bytes) if process.memory_bytes else "",
        "CPU time": shown_duration(process.cpu_s) if process.cpu_s else "",
        "done": f"{process.done:,}" if process.is_counted else "",
        "waiting": f"{process.waiting:,}" if process.waiting else "",
        "heard of": f"{shown_duration(float(round(process.silent_s)))} ago" if process.silent_s >= 1 else "now",
        "restarts": str(process.restarts) if process.restarts else "",
    }
    return {name: value for name, value in facts.items() if value}


def _words(process: ProcessView) -> str:
    words = [escaped(process.kind), escaped(process.state)]
    if process.doing:
        words.append(f"{escaped(process.doing)} for {shown_duration(round(process.doing_s, 1))}")
    if process.straggler:
        words.append("slower than the others")
    return " · ".join(word for word in words if word)


__all__ = ["ProcessDialog", "process_facts"]
