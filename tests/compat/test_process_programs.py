"""Whole programs with processes: what they print, how they end, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

PROLOGUE = """
import atexit, os, signal, sys, threading, time
from ropewalk.compat.process import Process, active_children
def say(text, seconds=0.0):
    time.sleep(seconds)
    print(text)
def stay():
    open("stays", "w").close()
    time.sleep(60)
def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)
"""


def program(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    script = tmp_path / "program.py"
    script.write_text(PROLOGUE + textwrap.dedent(text))
    command = [sys.executable, str(script)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, cwd=tmp_path)


def run(tmp_path: Path, text: str) -> tuple[int, str, str]:
    process = program(tmp_path, text)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_a_program_ends_after_its_processes_and_shows_all_they_print(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        """
        Process(target=say, args=("late words", 0.3)).start()  # no guard, and no join
        Process(target=say, args=("never", 60), daemon=True).start()
        """,
    )
    assert (code, err) == (0, "")
    assert out == "late words\n"


def test_classes_and_globals_of_the_script_are_known_in_its_processes(tmp_path: Path) -> None:
    code, out, _ = run(
        tmp_path,
        """
        FACTOR = 3
        class Times(Process):
            def __init__(self, number):
                super().__init__()
                self.number = number
            def run(self):
                print(self.number * FACTOR, sys.argv[0] == __file__, isinstance(self, Times))
        process = Times(14)
        process.start()
        process.join()
        """,
    )
    assert code == 0
    assert out == "42 True True\n"


def test_a_death_is_told_on_stderr_without_logging(tmp_path: Path) -> None:
    code, _, err = run(
        tmp_path,
        """
        process = Process(target=lambda: os.kill(os.getpid(), signal.SIGKILL))
        process.start()
        process.join()
        """,
    )
    assert code == 0
    assert err.count("was killed by SIGKILL") == 1


def test_what_was_ended_on_purpose_is_not_told(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        """
        for end in (Process.terminate, Process.kill):
            process = Process(target=time.sleep, args=(60,))
            process.start()
            process.pid
            end(process)
            process.join()
            print(process.exitcode, process.failure is not None)
        """,
    )
    assert (code, out, err) == (0, "-15 True\n-9 True\n", "")


@pytest.mark.parametrize("wait", ["process.join()", pytest.param("time.sleep(60)", marks=pytest.mark.soak)])
def test_ctrl_c_ends_the_children_as_well(tmp_path: Path, wait: str) -> None:
    process = program(
        tmp_path,
        f"""
        process = Process(target=lambda: (print(os.getpid(), flush=True), time.sleep(60)))
        process.start()
        os.write(1, b"now\\n")  # in one piece, as the child prints too
        {wait}
        """,
    )
    assert process.stdout
    said = {process.stdout.readline().strip() for _ in range(2)}
    (pid,) = said - {"now"}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert err.count("KeyboardInterrupt\n") == 2  # the child has its own
    assert not os.path.exists(f"/proc/{pid}")


def test_ctrl_c_at_the_end_of_a_script_says_what_it_waited_for_without_a_traceback(tmp_path: Path) -> None:
    process = program(tmp_path, "Process(target=lambda: (print('now', flush=True), time.sleep(600))).start()")
    assert process.stdout and process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert re.search(
        r"\nropewalk: at the end of the script, Process-1 \(pid \d+\) still ran, and is interrupted too\n", err
    )
    assert "Exception ignored" not in err and "in join" not in err


def test_who_catches_ctrl_c_in_join_finds_the_children_interrupted(tmp_path: Path) -> None:
    process = program(
        tmp_path,
        """
        process = Process(target=stay)
        process.start()
        wait_for("stays")
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # when `join` has begun
            process.join()
        except KeyboardInterrupt:
            process.join()
            print(process.exitcode)
        """,
    )
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "1\n")


@pytest.mark.parametrize(
    ("then", "code", "out"),
    [
        ("process.join(); print(process.exitcode)", 0, "1\n"),
        pytest.param("sys.exit(130)", 130, "", marks=pytest.mark.soak),
    ],
)
def test_who_catches_ctrl_c_anywhere_finds_the_children_interrupted(
    tmp_path: Path, then: str, code: int, out: str
) -> None:
    # The terminal tells all processes of multiprocessing's; programs that catch it and then wait for them rely on it.
    process = program(
        tmp_path,
        f"""
        process = Process(target=stay)
        process.start()
        wait_for("stays")
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(60)
        except KeyboardInterrupt:
            {then}
        """,
    )
    assert process.communicate(timeout=120)[0] == out
    assert process.returncode == code


def test_children_hear_of_a_ctrl_c_once(tmp_path: Path) -> None:
    # A second one would end what a child does about the first, such as saving its state.
    process = program(
        tmp_path,
        """
        def save():
            try:
                stay()
            except KeyboardInterrupt:
                time.sleep(0.5)
                print("saved")
        process = Process(target=save)
        process.start()
        wait_for("stays")  # one that is interrupted before has nothing to save
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        process.join()
        """,
    )
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (-signal.SIGINT, "saved\n")


def test_a_handler_of_the_user_is_left_alone(tmp_path: Path) -> None:
    process = program(
        tmp_path,
        """
        signal.signal(signal.SIGINT, lambda *_: print("mine"))
        process = Process(target=time.sleep, args=(0.7,))
        process.start()
        process.pid
        os.kill(os.getpid(), signal.SIGINT)
        process.join()
        print(process.exitcode)
        """,
    )
    assert process.communicate(timeout=120)[0] == "mine\n0\n"


def test_ctrl_c_ends_a_program_that_had_shared_objects_before_its_first_process(tmp_path: Path) -> None:
    # multiprocessing's end, which waits for all children, was called before ours, which tells them.
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import ropewalk as mp
            ours, theirs = mp.Pipe()
            import os, signal, time
            signal.signal(signal.SIGINT, signal.default_int_handler)
            process = mp.Process(target=time.sleep, args=(60,))
            process.start()
            process.pid
            signal.signal(signal.SIGINT, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))  # nobody passes it on
            os.kill(os.getpid(), signal.SIGINT)
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == -signal.SIGINT
