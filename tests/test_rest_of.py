"""Nothing that a process prints is lost between a line that was read and the rest."""

from __future__ import annotations

import subprocess
import sys

from tests.rest_of import rest_of

TALKS = """
import sys
sys.stdout.write("first\\nsecond\\nthird\\n")  # all in one piece: whoever reads the first line has read the others too
sys.stdout.flush()
sys.stderr.write("why\\n" * 100_000)  # more than a pipe holds
input()
"""


def test_lines_that_were_read_ahead_are_part_of_the_rest() -> None:
    command = [sys.executable, "-c", TALKS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout and process.stdout.readline() == "first\n"
        output, errors = rest_of(process)
    assert output == "second\nthird\n"
    assert errors.startswith("why\n" * 100_000) and "EOFError" in errors
