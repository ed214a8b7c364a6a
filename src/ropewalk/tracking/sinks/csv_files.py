"""Metrics of a run as a CSV file, one row for each number: group, name, step, time, value."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from ropewalk.tracking.records import Metrics, RunRecord
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink
from ropewalk.trusted_files import open_to_append

_HEADINGS = ("group", "name", "step", "time", "value")


class CsvFile(RunSink):
    """Appends to a file, which spreadsheets and `pandas.read_csv` can read at any time.

    Args:
        path: the file; None: metrics.csv in the folder of the run.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._file = -1

    def begin(self, run: CopiedRun) -> None:
        self._file = open_to_append(self._path or run.folder / "metrics.csv")
        if os.fstat(self._file).st_size == 0:
            self._append([_HEADINGS])

    def apply(self, batch: Sequence[RunRecord]) -> None:
        self._append(
            [
                (record.group, name, repr(record.step), f"{record.time:.6f}", repr(value))
                for record in (one.record for one in batch)
                if isinstance(record, Metrics)
                for name, value in zip(record.names, record.values, strict=True)
            ]
        )

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, rows: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        append_whole(self._file, text.getvalue().encode())


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


__all__ = ["CsvFile", "append_whole"]
