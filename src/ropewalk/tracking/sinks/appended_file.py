"""`AppendedFile`: a sink that is one file, to which each batch of records is appended whole."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from ropewalk.tracking.records import RunRecord
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink
from ropewalk.trusted_files import open_to_append


class AppendedFile(RunSink):
    """Appends to a file, which other programs can read at any time.

    Args:
        path: the file; None: `default_name` in the folder of the run.
    """

    default_name: str
    heading: bytes = b""
    """The first line of a new file."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._file = -1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})" if self._path else f"{type(self).__name__}()"

    @abstractmethod
    def encoded(self, batch: Sequence[RunRecord]) -> bytes:
        """Return the lines of a batch."""

    def begin(self, run: CopiedRun) -> None:
        self._file = open_to_append(self._path or run.folder / self.default_name)
        if os.fstat(self._file).st_size == 0:
            append_whole(self._file, self.heading)

    def apply(self, batch: Sequence[RunRecord]) -> None:
        append_whole(self._file, self.encoded(batch))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def append_whole(descriptor: int, content: bytes) -> None:
    """Append to a file all of `content` or nothing, so that it can be given again if the disk is full.

    Raises:
        OSError: it cannot be written.
    """
    size_bytes = os.fstat(descriptor).st_size
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise


__all__ = ["AppendedFile", "append_whole"]
