"""`LogScan`: the last lines of a log that match, read by chunks, and those that are added later."""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("debug", "info", "warning", "error")
"""Levels, in order; a line without one is "info"."""
_WORDS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "WARN": "warning", "ERROR": "error",
          "CRITICAL": "error", "FATAL": "error"}  # fmt: skip
_LEVEL = re.compile(rb"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_CHUNK_BYTES = 1 << 20
_MOST_LINE_BYTES = 16 << 10
"""Of a line, more is left out."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log."""

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
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self._text = text.lower().encode()
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
        self._position = 0 if is_all else max(0, size - max(_CHUNK_BYTES, 200 * num_lines))
        self.is_whole: bool = self._position == 0
        """Whether it was read from its beginning."""
        self._skips_first = not self.is_whole

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read(self) -> bool:
        """Read what was added; returns whether a line that matches was."""
        before = self.num_found
        if os.fstat(self._fd).st_size < self._position:  # the file was truncated
            self._position, self._partial = 0, b""
        while chunk := os.pread(self._fd, _CHUNK_BYTES, self._position):
            self._position += len(chunk)
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            self._partial = self._partial[:_CHUNK_BYTES]  # a file may be without line ends
            for line in lines[1:] if self._skips_first else lines:
                self._take(line)
            self._skips_first = self._skips_first and not lines
        return self.num_found > before

    def _take(self, line: bytes) -> None:
        level = self._level(line)
        if LEVELS.index(level) < self._least or (self._text and self._text not in line.lower()):
            return
        self.num_found += 1
        self.lines.append(LogLine(line[:_MOST_LINE_BYTES].decode(errors="replace"), level))

    def _level(self, line: bytes) -> str:
        if self._in_traceback:
            self._in_traceback = line.startswith(b" ") or not line
            return "error"
        if line.lstrip().startswith(b"Traceback (most recent call last)"):
            self._in_traceback = True
            return "error"
        found = _LEVEL.search(line, 0, 200)
        return _WORDS[found[1].decode()] if found else "info"


__all__ = ["LEVELS", "LogLine", "LogScan"]
