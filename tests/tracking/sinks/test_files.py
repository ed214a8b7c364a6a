"""The sinks that write files of their own: CSV and JSON lines."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path

import pytest

from ropewalk.tracking.records import Metrics, NoteAdded, RunRecord
from ropewalk.tracking.sinks.appended_file import append_whole
from ropewalk.tracking.sinks.csv_files import CsvFile
from ropewalk.tracking.sinks.jsonl import JsonLines
from ropewalk.tracking.sinks.sink import CopiedRun


def copied(folder: Path, attempt: int = 1) -> CopiedRun:
    return CopiedRun("a1", "digits", "first", folder, {"lr": 0.1}, attempt)


BATCH = [
    RunRecord("a1", Metrics("", ["loss", 'odd "name", of two'], [0.1, math.nan], 1.5, 100.25)),
    RunRecord("a1", NoteAdded("a remark", 101.0)),
]


def test_csv_has_a_row_for_each_number_and_goes_on(tmp_path: Path) -> None:
    for attempt in (1, 2):
        sink = CsvFile()
        sink.begin(copied(tmp_path, attempt))
        sink.apply(BATCH)
        sink.close()
        sink.close()
    with open(tmp_path / "metrics.csv", newline="") as file:
        headings, *rows = csv.reader(file)
    assert headings == ["group", "name", "step", "time", "value"]
    assert rows == 2 * [
        ["", "loss", "1.5", "100.250000", "0.1"],
        ["", 'odd "name", of two', "1.5", "100.250000", "nan"],
    ]


def test_json_lines_have_all_records(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "records.jsonl")
    sink.begin(copied(tmp_path))
    sink.apply(BATCH)
    sink.close()
    first, second = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert (first["record"], first["names"], first["values"]) == (
        "Metrics",
        ["loss", 'odd "name", of two'],
        [0.1, None],
    )
    assert second == {"run": "a1", "record": "NoteAdded", "text": "a remark", "time": 101.0}


def test_what_can_only_be_written_in_part_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    real, calls = os.write, []

    def write(descriptor: int, content: bytes) -> int:
        if calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        calls.append(1)
        return real(descriptor, content[:3])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            append_whole(descriptor, b"a line\n")
    assert path.read_bytes() == b"before\n"
    append_whole(descriptor, b"a line\n")
    os.close(descriptor)
    assert path.read_bytes() == b"before\na line\n"
