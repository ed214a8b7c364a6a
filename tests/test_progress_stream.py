"""Tests of the progress of runs on standard error."""

from __future__ import annotations

import errno
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


class Copier:
    """What a script may put in place of stderr: it has `write` and `flush`, and nothing else."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_stream_of_the_script_needs_no_isatty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", copier := Copier())
    with ProgressStream(None) as stream:
        assert not stream.has_picture
        stream.line("trial 1")
    assert copier.text == "trial 1\n"


def test_a_process_without_stderr_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as Python sets it if the descriptor is closed, in some daemons
    with ProgressStream(None) as stream:
        stream.line("trial 1")
    assert capsys.readouterr().out == "", "print(file=None) would write to stdout"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_line_that_cannot_be_written_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    class Gone(Terminal):
        is_gone = False

        def write(self, text: str) -> int:
            if self.is_gone:
                raise OSError(errno.EIO, "the terminal was closed")
            return super().write(text)

        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(sys, "stderr", gone := Gone())
    with ProgressStream(None) as stream:
        gone.is_gone = True
        stream.line("trial 1")
        if stream.has_picture:
            stream.draw("trial 1 of 10")
