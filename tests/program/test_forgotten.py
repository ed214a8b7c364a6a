"""What was built and not launched, or launched and not waited for, says so."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import ropewalk as rw

SCRIPT = """
import sys, time
import ropewalk as rw

def work(seconds):
    time.sleep(seconds)

def fail():
    raise ValueError("broken")

def build(function, *args):
    program = rw.Program(function.__name__)
    program.add(rw.Worker(function, *args))
    return program

build(work, 0).launch("threads").wait()      # says nothing
running = build(fail).launch("threads")      # says how it failed, if nobody asks
while running.status().state != "failed":
    time.sleep(0.01)
build(work, 1.5).launch("threads")           # says that it was stopped
forgotten = build(abs, 1)                    # says that it was never launched
if "crash" in sys.argv:
    raise SystemError("the reason")
if "lost" in sys.argv:
    raise rw.ServiceLost("it is gone", service="store")
"""


def built() -> rw.Program:
    program = rw.Program("built")
    program.add(rw.Worker(abs, 1))
    return program


def drop(make: Callable[[], object]) -> None:
    make()
    gc.collect()


def test_a_program_that_is_dropped_without_a_launch_says_so_at_the_line_where_it_was_made() -> None:
    # A script that forgot `launch()` did nothing, in silence.
    with pytest.warns(RuntimeWarning, match=r"program 'built' with 1 node was never launched.*launch\(\)") as warned:
        drop(built)
    # Programs of earlier tests may be collected only now, and warn too.
    (mine,) = [each for each in warned if each.filename == __file__]
    assert mine.lineno == built.__code__.co_firstlineno + 1


@pytest.mark.parametrize("use", [lambda p: p.graph(), lambda p: p.validate(), lambda p: p.launch("threads").wait()])
def test_what_was_drawn_checked_or_launched_was_not_forgotten(use: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(built())  # type: ignore[operator]
        rw.Program("empty")
        gc.collect()


def run(folder: Path, *arguments: str) -> str:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, env=os.environ)
    return done.stderr


def test_at_the_end_of_a_script_everything_that_was_forgotten_is_said(tmp_path: Path) -> None:
    # `program.launch()` as the last line of a script lost all work, in silence.
    text = run(tmp_path)
    assert "program 'work' still ran when the script ended, and nobody waited for it: work.0 had not completed" in text
    assert "ValueError: broken" in text and "in fail\n" in text
    assert "program 'fail' failed: node fail raised ValueError: broken." in text and "Nobody asked for that" in text
    assert text.count("was never launched") == 1 and "program 'abs' with 1 node was never launched" in text
    assert text.count("RuntimeWarning") == 3


def test_a_script_that_fails_has_said_enough(tmp_path: Path) -> None:
    text = run(tmp_path, "crash")
    assert "SystemError: the reason" in text and "RuntimeWarning" not in text


def test_a_script_that_fails_because_a_program_has_failed_says_why(tmp_path: Path) -> None:
    # A call raised that its service was gone, and the exception of the node, the reason, was shown nowhere.
    text = run(tmp_path, "lost")
    assert "ServiceLost: it is gone" in text and "ValueError: broken" in text
    assert text.count("RuntimeWarning") == 1 and "program 'fail' failed" in text
