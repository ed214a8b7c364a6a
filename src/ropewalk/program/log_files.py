"""The file that holds the output of a replica: reading its last lines, and the lines that are added."""

from __future__ import annotations

import os
from pathlib import Path

from ropewalk.processes.bounded_output import first_kept
from ropewalk.trusted_files import open_output

_BLOCK_BYTES = 64 * 1024
_MOST_LINE_BYTES = 1 << 20
"""A longer line is read in parts."""
_MOST_TAIL_BYTES = 16 << 20
"""The last lines are searched for in this part of the file, so that one without line ends is not read as a whole."""


class LogFile:
    """Reads a file that another process appends whole lines to. Once open, it is readable although it be removed.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._fd = open_output(path)
        self._position = 0
        self._partial = b""

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def tail(self, num_lines: int) -> list[str]:
        """The last lines; `read_new` continues after them. Reads only as much of the file's end as is needed."""
        end = position = os.fstat(self._fd).st_size
        kept = first_kept(self._fd)
        first, num_ends, blocks = end - max(_MOST_TAIL_BYTES, 256 * num_lines), 0, list[bytes]()
        while position > max(kept, first) and num_ends <= num_lines:
            start = max(kept, position - _BLOCK_BYTES)
            blocks.append(os.pread(self._fd, position - start, start))
            num_ends += blocks[-1].count(b"\n")
            position = start
        self._position, self._partial = end, b""
        data = b"".join(reversed(blocks))
        if position and position == kept:
            data = data[data.find(b"\n") + 1 :]  # the beginning of its first line was given back
        return _lines(data)[-num_lines:] if num_lines else []

    def read_new(self, *, everything: bool = False) -> list[str]:
        """The complete lines that were added since the last reading.

        Args:
            everything: whether the writer has ended, so that an unterminated last line counts too.
        """
        if os.fstat(self._fd).st_size < self._position:  # the file was truncated
            self._position, self._partial = 0, b""
        if is_behind := (kept := first_kept(self._fd)) > self._position:  # more was written since than is kept
            self._position, self._partial = kept, b""
        blocks = [self._partial]
        while block := os.pread(self._fd, _BLOCK_BYTES, self._position):
            self._position += len(block)
            blocks.append(block)
        data = b"".join(blocks)
        if is_behind:
            data = data[data.find(b"\n") + 1 :]
        end = data.rfind(b"\n") + 1
        if everything or len(data) - end > _MOST_LINE_BYTES:
            end = len(data)
        self._partial = data[end:]
        return _lines(data[:end])


def _lines(data: bytes) -> list[str]:
    if not data:
        return []
    # Not `splitlines`: carriage returns of a progress bar, and a dozen other characters, do not end lines here.
    return data.decode(errors="replace").removesuffix("\n").split("\n")
