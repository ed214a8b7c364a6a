"""`LogBox`: lines of a log in the page, with what is searched for marked; it follows its end while that is seen."""

from __future__ import annotations

from collections.abc import Iterable

from nicegui import ui

from ropewalk.page.browser import call_browser
from ropewalk.page.log_scan import LogLine


class LogBox:
    """The box. Make it where it stands.

    Args:
        label: what it shows, for readers of screens.

    Attributes:
        element: the box itself, for its style.
    """

    def __init__(self, label: str) -> None:
        self.element = ui.element("div").classes("rw-log").props(f'tabindex=0 role=log aria-label="{label}"')

    def show(self, lines: Iterable[LogLine], needle: str = "") -> None:
        """Show lines in place of all others, the last ones first.

        Args:
            lines: of the log.
            needle: is marked where it is found.
        """
        self._send("replace", lines, needle)

    def extend(self, lines: Iterable[LogLine], needle: str = "") -> None:
        """Show the same lines and earlier ones; what is in sight stays there. The arguments are those of `show`."""
        self._send("extend", lines, needle)

    def add(self, lines: Iterable[LogLine], needle: str = "") -> None:
        """Add lines that were written since. The arguments are those of `show`."""
        self._send("add", lines, needle)

    def _send(self, change: str, lines: Iterable[LogLine], needle: str) -> None:
        call_browser("log", self.element.id, change, [[line.text, line.level] for line in lines], needle)


__all__ = ["LogBox"]
