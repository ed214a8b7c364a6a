"""Whole lines from bytes in any pieces, files, tails, prefixes, and the thread that prints."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.escaping import escaped
from ropewalk.processes.output import Console, LineAssembler, in_pieces, prefixed
from tests.other_users import ADA, MALLORY, as_user, needs_root


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"x", b"\n"))))
def test_nothing_is_lost_and_only_whole_lines_come_out(pieces: list[bytes]) -> None:
    lines = LineAssembler(None)
    shown = [lines.feed(piece) for piece in pieces]
    assert all(not text or text.endswith("\n") for text in shown)
    assert "".join(shown) + lines.finish() == b"".join(pieces).decode(errors="replace")


def test_an_endless_line_comes_in_pieces() -> None:
    lines = LineAssembler(None)
    assert lines.feed(b"x" * 60_000) == ""
    assert lines.feed(b"x" * 10_000) == "x" * 70_000
    assert lines.finish() == ""


def test_a_progress_bar_is_shown_now_and_then_and_at_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = 100.0
    monkeypatch.setattr("ropewalk.processes.output.time.monotonic", lambda: now)
    lines = LineAssembler(tmp_path / "log")
    shown: list[str] = []
    for number in range(25):
        now += 1.0
        shown += (
            prefixed("pool-1 0@vm", text, colour=False).splitlines()
            if (text := lines.feed(b"\r%d of 25" % number))
            else []
        )
    assert shown == ["[pool-1 0@vm] 10 of 25", "[pool-1 0@vm] 20 of 25"]
    assert lines.tail().splitlines() == ["10 of 25", "20 of 25", "24 of 25"]
    last = lines.feed(b"\r25 of 25\nTraceback\n")
    assert prefixed("pool-1 0@vm", last, colour=False) == "[pool-1 0@vm] 25 of 25\n[pool-1 0@vm] Traceback\n"
    assert lines.tail().splitlines()[-2:] == ["25 of 25", "Traceback"], "the states before do not push out what follows"
    assert (tmp_path / "log").read_bytes().count(b" of 25") == 26, "the file has all of them"
    assert lines.feed(b"\rnext\rbar") == "", "its ten seconds begin anew"
    lines.finish()


def test_a_quick_progress_bar_comes_in_whole_states() -> None:
    lines = LineAssembler(None)
    text = "".join(lines.feed(b"\r%05d of 99999" % number) for number in range(6000))
    assert prefixed("w", text, colour=False) in [f"[w] {number:05} of 99999\n" for number in range(6000)]


def test_the_tail_holds_the_last_lines_with_the_one_that_has_no_end() -> None:
    lines = LineAssembler(None)
    lines.feed(b"".join(b"line %d\n" % number for number in range(1000)) + b"and a half")
    assert lines.tail().splitlines()[-2:] == ["line 999", "and a half"]
    assert len(lines.tail()) <= 8 * 1024
    lines.feed(b"\n" + b"y" * 100_000 + b"\n")
    assert lines.tail().endswith("y" * 8000) and len(lines.tail()) <= 8 * 1024
    lines.finish()
    assert lines.tail().endswith("yyy")  # the record is written after the end


def test_two_pipes_share_a_file_and_mix_no_lines(tmp_path: Path) -> None:
    out, err = LineAssembler(tmp_path / "log"), LineAssembler(tmp_path / "log")
    out.feed(b"out one\nout t")
    err.feed(b"err one\n")
    out.feed(b"wo\nrest")
    out.finish()
    err.feed(b"err two\n")
    err.finish()
    assert (tmp_path / "log").read_text() == "out one\nerr one\nout two\nrest\nerr two\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_a_problem_that_is_kept_and_output_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "log", Path("/dev/full")):
        lines = LineAssembler(path)
        assert lines.feed(b"a\nb\n") == "a\nb\n"
        assert "no longer kept" in lines.problem
        assert lines.feed(b"c\n") == "c\n"
        assert lines.finish() == ""


def test_each_line_bears_the_name_and_no_control_character_acts() -> None:
    text = "one\n\ntwo\x1b[2Jthree\x07four\r\nfive\ttab \x1b[31mred\x1b[0m\x1b]0;title\x07"
    assert prefixed("pool-1 3@n17", text, colour=False) == (
        "[pool-1 3@n17] one\n"
        "[pool-1 3@n17] \n"
        "[pool-1 3@n17] two\\x1b[2Jthree\\x07four\n"
        "[pool-1 3@n17] five\ttab \x1b[31mred\x1b[0m\\x1b]0;title\\x07\x1b[0m\n"
    )
    assert prefixed("a", "x", colour=True).startswith("\x1b[")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("one\x85[pool-1 1@n17] two", r"one\x85[pool-1 1@n17] two"),  # NEL ends a line in many terminals
        ("one\u2028[pool-1 1@n17] two\u2029three", r"one\u2028[pool-1 1@n17] two\u2029three"),
        ("\x9b2Jgone\x9d0;title\x9c", r"\x9b2Jgone\x9d0;title\x9c"),  # CSI, OSC and ST in one byte
        ("\u202e[71n@1 1-loop]\u2066", r"\u202e[71n@1 1-loop]\u2066"),
        ("\x1b[8mhidden", "\x1b[8mhidden\x1b[0m"),
        ("\x1b[31mred \x1b]8;;http://evil.example\x1b\\", "\x1b[31mred \\x1b]8;;http://evil.example\\x1b\\\x1b[0m"),
    ],
)
def test_no_process_writes_a_line_in_the_name_of_another_or_colours_what_comes_after(
    line: str, shown: str
) -> None:  # S32
    assert prefixed("pool-1 3@n17", f"{line}\n", colour=False) == f"[pool-1 3@n17] {shown}\n"
    assert prefixed(line, "\n", colour=False) == f"[{escaped(line)}] \n"


def test_a_terminal_that_does_not_know_a_character_shows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole piece of output was lost, without a word."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    console = Console()
    console.show("a", "caf\u00e9\nnext\n", False, lambda: None)
    console.close()
    assert written.getvalue() == b"[a] caf\\xe9\n[a] next\n"


def test_the_console_prints_in_order_and_says_what_is_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    shown = threading.Semaphore(0)
    for number in range(100):
        console.show("a", f"{number}\n", number % 2 == 1, lambda: shown.release())
    console.close()
    console.close()
    captured = capsys.readouterr()
    assert captured.out == "".join(f"[a] {number}\n" for number in range(0, 100, 2))
    assert captured.err == "".join(f"[a] {number}\n" for number in range(1, 100, 2))
    assert all(shown.acquire(blocking=False) for _ in range(100))


@given(st.lists(st.sampled_from(["", "a", "x" * 1000, "\u00e9" * 900, "y" * 10_000])), st.booleans())
def test_pieces_are_whole_lines_that_fit_into_a_pipe_or_one_line(lines: list[str], is_ended: bool) -> None:
    text = "\n".join(lines) + "\n" * is_ended
    pieces = list(in_pieces(text))
    assert "".join(pieces) == text
    for piece in pieces:
        assert len(piece.encode()) <= 4096 or piece.count("\n") - piece.endswith("\n") == 0
    assert all(piece.endswith("\n") for piece in pieces[:-1])
    assert len(list(in_pieces("x\n" * 20_000))) == 40_000 // 4096 + 1


class Written(io.RawIOBase):
    """Keeps each write, as a pipe gets it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.there = threading.Event()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data))
        self.there.set()
        return len(data)


def test_a_line_of_the_program_is_written_at_once_where_python_does_not_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    # print("step", 3) was four writes, and the line of a worker came between them.
    raw = Written()
    stream = io.TextIOWrapper(raw, write_through=True)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdout", stream)
    console = Console()
    console.open()
    print("step", 3, 4)
    assert raw.writes == [b"step 3 4\n"]
    raw.there.clear()
    print(".", end="")
    assert raw.there.wait(120), "the end of a line is not waited for"
    console.close()
    assert stream.write_through and not stream.line_buffering
    print("a", "b")
    assert raw.writes[1:] == [b".", b"a", b" ", b"b", b"\n"]


def test_a_closed_stdout_does_not_stop_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    console = Console()
    shown = threading.Event()
    console.show("a", "text\n", False, shown.set)
    assert shown.wait(120)
    console.close()


def test_kept_output_goes_through_no_link_and_into_no_folder_of_others(tmp_path: Path) -> None:  # S12, S13
    before = os.umask(0)
    try:
        console = Console()
        console.keep("one\n", tmp_path / "deep/er/a.log")
    finally:
        os.umask(before)
    assert (tmp_path / "deep/er/a.log").read_text() == "one\n" and not console.problem
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("deep", "deep/er", "deep/er/a.log")] == [
        0o700, 0o700, 0o600,
    ]  # fmt: skip
    (tmp_path / "theirs").write_text("")
    (tmp_path / "b.log").symlink_to("theirs")
    console.keep("two\n", tmp_path / "b.log")
    console.close()
    assert (tmp_path / "theirs").read_text() == "" and "symbolic links" in console.problem


@needs_root
def test_no_output_goes_into_a_file_that_another_user_made_first(everybodys: Path) -> None:  # S13
    planted = everybodys / "a.log"

    def plant() -> None:
        planted.write_text("")
        planted.chmod(0o666)

    def victim() -> tuple[str, str, str]:
        lines, console = LineAssembler(planted), Console()
        lines.feed(b"secret\n")
        console.keep("secret\n", planted)
        return planted.read_text(), lines.problem, console.problem

    as_user(MALLORY, plant)
    for content, *problems in (victim(), as_user(ADA, victim)):
        assert content == ""
        assert all(str(MALLORY) in problem for problem in problems), problems


def test_a_pipe_in_the_place_of_a_file_of_output_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    lines = LineAssembler(tmp_path / "a.log")
    assert lines.feed(b"said\n") == "said\n" and "a.log" in lines.problem
    console = Console()
    console.keep("said\n", tmp_path / "a.log")
    console.close()
    assert "a.log" in console.problem
