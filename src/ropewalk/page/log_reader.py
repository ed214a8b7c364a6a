"""Reads the output of a process for the page: its last lines, what is added, and the lines that hold a text."""

from __future__ import annotations

import os
from pathlib import Path

from ropewalk.escaping import escaped_line
from ropewalk.program.log_files import LogFile

_SEARCHED_BYTES = 64 * 2**20
_MOST_FOUND = 1000
_LONGEST = 4000
"""Characters of a line that are shown."""


class LogReader:
    """Reads one file of output; its lines have no control characters.

    Args:
        path: of the file.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = LogFile(path)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def tail(self, num_lines: int) -> list[str]:
        """Return the last lines."""
        return [_shown(line) for line in self._file.tail(num_lines)]

    def read_new(self) -> list[str]:
        """Return the complete lines that were added since."""
        return [_shown(line) for line in self._file.read_new()]

    def search(self, text: str) -> tuple[list[str], bool]:
        """Return the last lines that hold a text, in any case, and whether all of the file was searched for them.

        Raises:
            OSError: the file cannot be read any more.
        """
        with open(self._path, "rb", opener=_not_waiting) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - _SEARCHED_BYTES)
            file.seek(start)
            data = file.read(_SEARCHED_BYTES)
        wanted = text.lower()
        found = [
            shown for line in data.decode(errors="replace").split("\n") if wanted in (shown := _shown(line)).lower()
        ]
        return found[-_MOST_FOUND:], start == 0 and len(found) <= _MOST_FOUND


def _not_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer


def _shown(line: str) -> str:
    shown = escaped_line(line, colours=False)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


__all__ = ["LogReader"]
