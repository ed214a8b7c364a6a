"""Tests of the progress of runs on standard error."""

from __future__ import annotations

import io
import sys

import pytest

from ropewalk.progress_stream import ProgressStream


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_picture_and_lines_above_it_with_brackets_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with ProgressStream(None) as stream:
        assert stream.has_picture
        stream.line("a note [1]")
        stream.draw("run [x]: generation 3")
    assert not stream.has_picture
    assert "a note [1]" in terminal.getvalue()
    assert "run [x]: generation 3" in terminal.getvalue(), "the last picture is left there"


@pytest.mark.parametrize("shown", [None, True])
def test_a_file_gets_lines_only(shown: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressStream(shown) as stream:
        assert not stream.has_picture
        stream.line("trial 1")
    assert capsys.readouterr().err == "trial 1\n"


def test_nothing_is_shown_if_nothing_is_to_be_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressStream(False) as stream:
        stream.line("trial 1")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with ProgressStream(False) as stream:
        assert not stream.has_picture
    assert (capsys.readouterr().err, terminal.getvalue()) == ("", "")
