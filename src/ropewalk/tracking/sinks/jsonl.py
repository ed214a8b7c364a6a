"""All records of a run as JSON, one in each line: a copy that any program can read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ropewalk.tracking.records import RunRecord
from ropewalk.tracking.sinks.csv_files import append_whole
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink
from ropewalk.trusted_files import open_to_append


class JsonLines(RunSink):
    """Appends lines such as {"run": "...", "record": "Metrics", "group": "", "names": ["loss"], "values": [0.5], ...}.

    NaN and infinities are null, because JSON has no words for them.

    Args:
        path: the file; None: records.jsonl in the folder of the run.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._file = -1

    def begin(self, run: CopiedRun) -> None:
        self._file = open_to_append(self._path or run.folder / "records.jsonl")

    def apply(self, batch: Sequence[RunRecord]) -> None:
        append_whole(self._file, b"".join(map(_line, batch)))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _line(one: RunRecord) -> bytes:
    fields = {name: getattr(one.record, name) for name in one.record.__struct_fields__}
    return msgspec.json.encode({"run": one.run, "record": type(one.record).__name__, **fields}) + b"\n"


__all__ = ["JsonLines"]
