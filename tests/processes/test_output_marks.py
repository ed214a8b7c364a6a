"""What a launcher adds to the output of processes that have ended."""

from __future__ import annotations

import os
from pathlib import Path

from ropewalk.processes.output_marks import LIFE_MARK, append_to, mark_end


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    append_to(tmp_path / "a.log", "said\n")
    append_to(tmp_path / "b.log", "said\n")
    assert os.listdir(tmp_path) == ["a.log"], "nor is a file made that was not there"


def test_a_line_stands_between_the_output_of_a_process_and_that_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("said\n")
    mark_end(path, "a was killed\nby \x1b[31mSIGKILL")
    assert path.read_text() == f"said\n{LIFE_MARK}a was killed by \\x1b[31mSIGKILL ---\n"
