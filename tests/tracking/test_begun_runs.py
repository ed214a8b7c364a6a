"""Which run a launcher goes on with, after one that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.tracking.begun_runs import BEGUN_RUNS, BegunRuns, RunPlace, begun_runs, take_begun_runs
from tests.forked_process import ForkedProcess

PLACE = RunPlace("script", "digits", "/store/runs.db")


def test_runs_are_gone_on_with_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    first = BegunRuns(tmp_path / "begun")
    assert first.earlier(PLACE) == ""
    first.note(PLACE, "a")
    first.note(RunPlace("population", "digits", "/store/runs.db"), "x")
    first.note(PLACE, "b")
    assert first.earlier(PLACE) == "", "its own runs are no predecessor's"
    second = BegunRuns(tmp_path / "begun")
    assert [second.earlier(PLACE) for _ in range(3)] == ["a", "b", ""]
    second.note(PLACE, "c")
    third = BegunRuns(tmp_path / "begun")
    assert [third.earlier(PLACE) for _ in range(4)] == ["a", "b", "c", ""]
    assert third.earlier(RunPlace("script", "digits", "/other.db")) == ""


def test_a_line_in_whose_middle_the_writer_was_killed_is_left_out(tmp_path: Path) -> None:
    BegunRuns(tmp_path / "begun").note(PLACE, "a")
    with (tmp_path / "begun").open("a") as file:
        file.write('{"place": {"kind": "script"')
    assert [BegunRuns(tmp_path / "begun").earlier(PLACE)] == ["a"]


def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    BegunRuns(tmp_path / "begun").note(PLACE, "a")
    (tmp_path / "begun").chmod(0o666)
    assert BegunRuns(tmp_path / "begun").earlier(PLACE) == ""


def test_the_process_that_takes_the_variable_is_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.tracking.begun_runs._of_this_launcher", [])
    take_begun_runs({})
    assert begun_runs() is None
    environ = {BEGUN_RUNS: str(tmp_path / "begun"), "HOME": "/"}
    take_begun_runs(environ)
    assert environ == {"HOME": "/"}, "its workers would take themselves for launchers"
    runs = begun_runs()
    assert runs
    runs.note(PLACE, "a")
    with ForkedProcess(lambda: runs.note(PLACE, "of a child")) as child:
        child.wait_until_done()
    again = BegunRuns(tmp_path / "begun")
    assert [again.earlier(PLACE), again.earlier(PLACE)] == ["a", ""]
