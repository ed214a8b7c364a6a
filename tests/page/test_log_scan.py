"""Logs are read by chunks, searched, and followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.page import log_scan
from ropewalk.page.log_scan import LogLine, LogScan

TEXT = b"""begin
INFO: epoch 1
WARNING: slow
Traceback (most recent call last):
  File "x.py"
ValueError: bad
epoch 2
"""


@pytest.fixture
def scans() -> Iterator[Any]:
    opened: list[LogScan] = []

    def scan(path: Path, *arguments: Any, **options: Any) -> LogScan:
        opened.append(LogScan(path, *arguments, **options))
        opened[-1].read()
        return opened[-1]

    yield scan
    for one in opened:
        one.close()


def texts(scan: LogScan) -> list[str]:
    return [line.text for line in scan.lines]


def test_lines_have_levels_and_a_traceback_is_an_error(tmp_path: Path, scans: Any) -> None:
    (tmp_path / "1.txt").write_bytes(TEXT)
    levels = [line.level for line in scans(tmp_path / "1.txt").lines]
    assert levels == ["info", "info", "warning", "error", "error", "error", "info"]
    assert texts(scans(tmp_path / "1.txt", level="error"))[-1] == "ValueError: bad"
    assert len(scans(tmp_path / "1.txt", level="warning").lines) == 4


def test_a_text_is_found_in_any_case(tmp_path: Path, scans: Any) -> None:
    (tmp_path / "1.txt").write_bytes(TEXT)
    assert texts(scans(tmp_path / "1.txt", "EPOCH")) == ["INFO: epoch 1", "epoch 2"]


def test_what_is_added_is_read_when_its_line_ends(tmp_path: Path, scans: Any) -> None:
    path = tmp_path / "1.txt"
    path.write_bytes(b"one\ntw")
    scan = scans(path)
    assert texts(scan) == ["one"] and not scan.read()
    with open(path, "ab") as file:
        file.write(b"o\nthree\n")
    assert scan.read() == [LogLine("two", "info"), LogLine("three", "info")]
    assert texts(scan) == ["one", "two", "three"] and not scan.read()


def test_only_the_last_lines_are_kept_and_the_end_of_a_large_file_is_read(
    tmp_path: Path, scans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "_CHUNK_BYTES", 64)
    path = tmp_path / "1.txt"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    scan = scans(path, num_lines=3)
    assert texts(scan) == ["line 997", "line 998", "line 999"] and not scan.is_whole
    assert texts(scans(path, "line 5", num_lines=200))[0] == "line 5"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "1.txt").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"1\.txt"):
        LogScan(tmp_path / "1.txt")


def test_lines_are_text_without_terminal_sequences(tmp_path: Path, scans: Any) -> None:
    (tmp_path / "1.txt").write_bytes(b"\x1b[31mr\x1b[0med \x1b[2J<b>\x07\nnext\n")
    assert texts(scans(tmp_path / "1.txt")) == ["red \\x1b[2J<b>\\x07", "next"]
    assert texts(scans(tmp_path / "1.txt", "RED")) == ["red \\x1b[2J<b>\\x07"]  # as it is read, not as it is stored


def test_text_beyond_ascii_is_found_in_any_case(tmp_path: Path, scans: Any) -> None:
    (tmp_path / "1.txt").write_text("Größe\ngrosse\n")
    assert texts(scans(tmp_path / "1.txt", "GRÖß")) == ["Größe"]


def test_more_lines_than_are_kept_are_counted(tmp_path: Path, scans: Any) -> None:
    (tmp_path / "1.txt").write_text("".join(f"same {number}\n" for number in range(1500)))
    scan = scans(tmp_path / "1.txt", "same", num_lines=1000)
    assert (len(scan.lines), scan.num_found, texts(scan)[-1]) == (1000, 1500, "same 1499")


def test_line_without_end_is_kept_in_part(tmp_path: Path, scans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "_CHUNK_BYTES", 100)
    path = tmp_path / "1.txt"
    path.write_bytes(b"begin\n" + b"x" * 10_000)
    scan = scans(path, "x")
    scan.read()
    assert len(scan._partial) <= 100
    with path.open("ab") as file:
        file.write(b"\nx end\n")
    scan.read()
    assert [line.text for line in scan.lines][1:] == ["x end"]


def test_pipe_in_place_of_a_log_blocks_nothing(tmp_path: Path, scans: Any) -> None:
    os.mkfifo(tmp_path / "1.txt")
    with pytest.raises(OSError, match="not a regular file"):
        scans(tmp_path / "1.txt")
