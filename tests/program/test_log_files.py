"""The last lines of a file that grows, and what is added to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.program import log_files
from ropewalk.program.log_files import LogFile


def test_the_tail_is_the_last_lines_whatever_the_size_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    lines = [f"line {number} é" for number in range(200)]
    path.write_text("".join(f"{line}\n" for line in lines))
    for block_bytes in (1, 7, 4096, 1 << 20):
        monkeypatch.setattr(log_files, "_BLOCK_BYTES", block_bytes)
        with LogFile(path) as log:
            for wanted in (0, 1, 3, 199, 200, 1000):
                assert log.tail(wanted) == (lines[-wanted:] if wanted else [])


def test_what_is_added_comes_once_and_only_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")
    with LogFile(path) as log, path.open("a") as file:
        assert log.tail(5) == ["old"]
        assert log.read_new() == []
        for text, new in (("one\ntw", ["one"]), ("o\n", ["two"]), ("\n\n", ["", ""]), ("end", [])):
            file.write(text)
            file.flush()
            assert log.read_new() == new
        os.unlink(path)
        file.write("ing")
        file.flush()
        assert log.read_new(everything=True) == ["ending"]


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a key\n")
    (tmp_path / "a.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        LogFile(tmp_path / "a.log")


def test_a_file_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("a long line\n")
    with LogFile(path) as log:
        log.tail(1)
        path.write_text("new\n")
        assert log.read_new() == ["new"]


@given(chunks=st.lists(st.binary(max_size=8), max_size=20), n=st.integers(0, 5))
def test_tail_and_additions_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], n: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    path.write_bytes(b"first\nsecond\n")
    with LogFile(path) as log:
        shown = log.tail(n)
        with path.open("ab") as file:
            for chunk in chunks:
                file.write(chunk)
                file.flush()
                shown += log.read_new()
        shown += log.read_new(everything=True)
    text = path.read_bytes().decode(errors="replace").removesuffix("\n").split("\n")
    assert shown == text[max(0, 2 - n) :]


def test_file_without_line_ends_is_read_in_parts_and_not_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "_MOST_LINE_BYTES", 100)
    monkeypatch.setattr(log_files, "_MOST_TAIL_BYTES", 1000)
    monkeypatch.setattr(log_files, "_BLOCK_BYTES", 50)
    path = tmp_path / "a.log"
    path.write_text("x" * 5000)
    with LogFile(path) as log, path.open("a") as file:
        [line] = log.tail(1)
        assert 1000 <= len(line) < 1100
        file.write("y" * 90)
        file.flush()
        assert log.read_new() == []
        file.write("z" * 90)
        file.flush()
        assert log.read_new() == ["y" * 90 + "z" * 90]


def test_pipe_in_place_of_the_file_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    with pytest.raises(OSError, match="not a regular file"):
        LogFile(tmp_path / "a.log")
