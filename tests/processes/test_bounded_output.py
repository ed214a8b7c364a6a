"""Files of output that give their beginning back to the file system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from ropewalk.page.log_scan import LogScan
from ropewalk.processes import bounded_output
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.messages import Output, StartProcess
from ropewalk.processes.output import LineAssembler
from ropewalk.processes.output_relay import OutputRelay
from ropewalk.processes.owner import ProcessSpec
from ropewalk.program.log_files import LogFile

_KEPT = 64 << 10
_NUM_LINES = 100_000


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bounded_output, "MOST_BYTES", _KEPT)
    with open(tmp_path / "try", "wb") as file:
        file.write(b"x" * 8192)
        file.flush()
        try:
            bounded_output.kernel.punch_hole(file.fileno(), 4096)
        except OSError as error:
            pytest.skip(f"needs a file system with holes: {error}")


def _lines(first: int, num: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, first + num))


def _write(lines: LineAssembler, until: int = _NUM_LINES) -> None:
    for first in range(0, until, 500):
        lines.feed(_lines(first, 500))


def test_a_file_that_is_bounded_takes_little_space_and_has_the_last_lines(tmp_path: Path) -> None:
    """A pool that printed for weeks filled /run/user/UID, which is memory, with lines that nobody had asked for."""
    lines = LineAssembler(path := tmp_path / "log", is_bounded=True)
    _write(lines)
    lines.finish()
    facts = path.stat()
    assert facts.st_size == len(_lines(0, _NUM_LINES)), "positions of readers stay true"
    assert facts.st_blocks * 512 <= 3 * _KEPT
    with LogFile(path) as log:
        assert log.tail(2) == ["line 099998", "line 099999"]
        everything = log.tail(_NUM_LINES)
        assert everything == _lines(_NUM_LINES - len(everything), len(everything)).decode().splitlines()
        assert len(everything) >= _KEPT // 12 - 1
    scan = LogScan(path, "line")
    scan.read()
    scan.close()
    assert [line.text for line in scan.lines][-1] == "line 099999" and not scan.is_whole
    assert scan.num_found == len(everything)


def test_a_file_that_is_not_bounded_keeps_all(tmp_path: Path) -> None:
    lines = LineAssembler(path := tmp_path / "log")
    _write(lines)
    lines.finish()
    assert path.read_bytes() == _lines(0, _NUM_LINES)


def test_readers_that_are_far_behind_go_on_with_a_whole_line(tmp_path: Path) -> None:
    lines = LineAssembler(path := tmp_path / "log", is_bounded=True)
    lines.feed(_lines(0, 10))
    scan = LogScan(path)
    with LogFile(path) as log:
        assert log.tail(1) == ["line 000009"] and len(scan.read()) == 10
        _write(lines)
        new = log.read_new()
        assert new == _lines(_NUM_LINES - len(new), len(new)).decode().splitlines() and new
        scan.read()
        assert scan.num_found == 10 + len(new)
        lines.feed(b"more\n")
        assert log.read_new() == ["more"]
    scan.close()
    lines.finish()


@pytest.mark.parametrize("is_bounded", [False, True])
def test_the_output_of_processes_is_bounded_where_no_folder_was_named(tmp_path: Path, is_bounded: bool) -> None:
    start = cast("StartProcess", type("Start", (), {"output": "", "name": "p.0"})())
    process = HostedProcess(start, cast("Any", None), tmp_path, is_bounded=is_bounded)
    try:
        for first in range(0, _NUM_LINES, 500):
            process.feed(process.pipes[first // 500 % 2], _lines(first, 500))
        process.finish_output()
    finally:
        process.close()
    assert ((tmp_path / "p.0.log").stat().st_blocks * 512 <= 3 * _KEPT) is is_bounded


@pytest.mark.parametrize("is_bounded", [False, True])
def test_the_output_of_other_hosts_is_bounded_likewise(
    tmp_path: Path, is_bounded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = OutputRelay(tmp_path, is_bounded=is_bounded)
    agent = cast("AgentRecord", type("Agent", (), {"host": "n1", "link": None})())
    facts = {"group": "p", "rank": 0, "output": "", "name": "p.0", "plain_output": False}
    spec = cast("ProcessSpec", type("Spec", (), facts)())
    for first in range(0, _NUM_LINES, 5000):
        text = _lines(first, 5000).decode()
        relay.take(agent, Output("p.0", False, text, len(text)), spec)
    relay.close()
    assert ((tmp_path / "p.0.log").stat().st_blocks * 512 <= 3 * _KEPT) is is_bounded
    assert "line 099999" in capsys.readouterr().out, "all of it is shown"
    assert os.path.getsize(tmp_path / "p.0.log") == len(_lines(0, _NUM_LINES))
