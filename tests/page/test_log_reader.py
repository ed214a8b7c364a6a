from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.page.log_reader import LogReader


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("".join(f"step {number}\n" for number in range(100)))
    return path


@pytest.fixture
def reader(file: Path) -> Iterator[LogReader]:
    reader = LogReader(file)
    yield reader
    reader.close()


def test_new_lines_follow_the_last_ones(file: Path, reader: LogReader):
    assert reader.tail(2) == ["step 98", "step 99"]
    with file.open("a") as out:
        out.write("one\ntwo\nnot yet compl")
    assert reader.read_new() == ["one", "two"]
    with file.open("a") as out:
        out.write("ete\n")
    assert reader.read_new() == ["not yet complete"]


def test_a_search_finds_lines_anywhere_in_any_case(reader: LogReader):
    assert reader.search("STEP 1") == (["step 1", *(f"step {number}" for number in range(10, 20))], True)
    assert reader.search("nowhere") == ([], True)


def test_a_search_keeps_the_last_lines_and_says_that_there_were_more(file: Path, reader: LogReader):
    file.write_text("".join(f"same {number}\n" for number in range(1500)))
    lines, whole = reader.search("same")
    assert (len(lines), lines[-1], whole) == (1000, "same 1499", False)


def test_lines_are_text_without_terminal_sequences(file: Path, reader: LogReader):
    file.write_text("\x1b[31mred\x1b[0m\x1b[2J <b>\n")
    assert reader.tail(1) == reader.search("RED")[0] == ["red\\x1b[2J <b>"]


def test_a_search_in_a_file_that_was_removed_fails_as_such(file: Path, reader: LogReader):
    file.unlink()
    with pytest.raises(FileNotFoundError):
        reader.search("x")
