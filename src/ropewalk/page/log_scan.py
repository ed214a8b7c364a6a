"""`LogScan`: the last lines of a log that match, read by chunks, and those that are added later.

Lines become text: colours of terminals are taken out, and other control characters are shown as escape sequences.
"""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ropewalk.escaping import escaped_line
from ropewalk.processes.bounded_output import first_kept
from ropewalk.trusted_files import open_output

LEVELS = ("debug", "info", "warning", "error")
"""Levels, in order; a line without one is "info"."""
_WORDS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "WARN": "warning", "ERROR": "error",
          "CRITICAL": "error", "FATAL": "error"}  # fmt: skip
_LEVEL = re.compile(rb"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_CHUNK_BYTES = 1 << 20
_MOST_SEARCHED_BYTES = 256 << 20
"""The end of a file in which lines are searched for."""
_MOST_LINE_BYTES = 4 << 10
"""Of a line that is shown, more is left out."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes:
        text: without control characters.
        level: one of `LEVELS`.
    """

    text: str
    level: str


class LogScan:
    """Reads a log that grows.

    Args:
        path: the file.
        text: only lines with this text, in any case of letters.
        level: only lines of this level, or a worse one; see `LEVELS`.
        num_lines: how many of the last lines are kept.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, text: str = "", level: str = "debug", num_lines: int = 500) -> None:
        self._fd = open_output(path)
        self._text = text.lower()
        self._least = LEVELS.index(level)
        self._partial = b""
        self._in_traceback = False
        self.lines: deque[LogLine] = deque(maxlen=num_lines)
        """The last lines that match."""
        self.num_found: int = 0
        """How many lines match, of those that were read."""
        size = os.fstat(self._fd).st_size
        is_all = bool(self._text) or self._least > 0
        # Without a filter, the last lines are near the end.
        most_bytes = _MOST_SEARCHED_BYTES if is_all else max(_CHUNK_BYTES, 200 * num_lines)
        self._position = max(first_kept(self._fd), size - most_bytes)
        self.is_whole: bool = self._position == 0
        """Whether it was read from its beginning."""
        self._skips_first = not self.is_whole

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read(self) -> list[LogLine]:
        """Read what was added; returns the lines of it that match, the last ones as `lines` has them.

        Raises:
            OSError: the file cannot be read.
        """
        before = self.num_found
        if os.fstat(self._fd).st_size < self._position:  # the file was truncated
            self._position, self._partial = 0, b""
        if (kept := first_kept(self._fd)) > self._position:  # more was written since than is kept
            self._position, self._partial, self._skips_first = kept, b"", True
        while chunk := os.pread(self._fd, _CHUNK_BYTES, self._position):
            self._position += len(chunk)
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            self._partial = self._partial[:_CHUNK_BYTES]  # a file may be without line ends
            for line in lines[1:] if self._skips_first else lines:
                self._take(line)
            self._skips_first = self._skips_first and not lines
        num_new = min(self.num_found - before, len(self.lines))
        return list(self.lines)[-num_new:] if num_new else []

    def _take(self, line: bytes) -> None:
        level = self._level(line)
        if LEVELS.index(level) < self._least or not self._matches(line):
            return
        self.num_found += 1
        more = "…" if len(line) > _MOST_LINE_BYTES else ""
        self.lines.append(LogLine(_shown(line[:_MOST_LINE_BYTES]) + more, level))

    def _matches(self, line: bytes) -> bool:
        if self._text.isascii() and b"\x1b" not in line:  # the usual case, without work for each line
            return self._text.encode() in line.lower()
        return self._text in _shown(line).lower()

    def _level(self, line: bytes) -> str:
        if self._in_traceback:
            self._in_traceback = line.startswith(b" ") or not line
            return "error"
        if line.lstrip().startswith(b"Traceback (most recent call last)"):
            self._in_traceback = True
            return "error"
        found = _LEVEL.search(line, 0, 200)
        return _WORDS[found[1].decode()] if found else "info"


def scanned(path: Path, text: str = "", level: str = "debug", num_lines: int = 500) -> LogScan:
    """Return a log that has been read to its end; takes seconds for a large one. The arguments are those of `LogScan`.

    Raises:
        OSError: the file cannot be opened or read.
    """
    scan = LogScan(path, text, level, num_lines)
    try:
        scan.read()
    except BaseException:
        scan.close()
        raise
    return scan


def _shown(line: bytes) -> str:
    return escaped_line(line.decode(errors="replace"), colours=False)


__all__ = ["LEVELS", "LogLine", "LogScan", "scanned"]
