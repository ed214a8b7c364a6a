"""What an attempt prints is in a file of its run, and still where it was."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from ropewalk.tracking import kept_output
from ropewalk.tracking.kept_output import keeping_output


def test_what_is_printed_is_kept_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with keeping_output(tmp_path, 3):
        print("one")
        sys.stderr.writelines(["two\n", "three \ud800\n".encode(errors="replace").decode()])
        assert not sys.stdout.isatty()
    print("after")
    assert (sys.stdout, sys.stderr) == before
    assert (tmp_path / "output" / "3.txt").read_text() == "one\ntwo\nthree ?\n"
    assert capsys.readouterr() == ("one\nafter\n", "two\nthree ?\n")
    assert (tmp_path / "output" / "3.txt").stat().st_mode & 0o777 == 0o600


def test_without_output_there_is_no_file(tmp_path: Path) -> None:
    with keeping_output(tmp_path, 1):
        print(end="")
    assert not (tmp_path / "output").exists()


def test_a_second_time_adds_to_the_file(tmp_path: Path) -> None:
    for word in ("one", "two"):
        with keeping_output(tmp_path, 1):
            print(word)
    assert (tmp_path / "output" / "1.txt").read_text() == "one\ntwo\n"


def test_more_than_the_bound_is_only_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept_output, "_MOST_BYTES", 10)
    with keeping_output(tmp_path, 1):
        for _ in range(4):
            print("1234")
    assert (tmp_path / "output" / "1.txt").read_text() == "1234\n1234\n\n[more than 0 MiB are not kept]\n"
    assert capsys.readouterr().out == "1234\n" * 4


def test_a_folder_that_cannot_be_made_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output").write_text("a file")
    with caplog.at_level(logging.WARNING), keeping_output(tmp_path, 1):
        print("one")
    assert capsys.readouterr().out == "one\n"
    assert "is not kept in" in caplog.text


def test_a_stream_that_the_user_put_there_stays(tmp_path: Path) -> None:
    before, own = sys.stdout, sys.stderr
    with keeping_output(tmp_path, 1):
        sys.stdout = own
    try:
        assert sys.stdout is own
    finally:
        sys.stdout = before
