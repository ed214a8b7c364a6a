"""A test that hangs is ended, with all stacks, and the next one runs; and all that without a handler of SIGALRM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk.processes.interrupts import may_serve

ROOT = Path(__file__).parents[1]

TESTS = """
import threading, time, pytest

def wait_in_a_thread(gate):
    gate.wait()

@pytest.fixture
def beside():
    gate = threading.Event()
    thread = threading.Thread(target=wait_in_a_thread, args=(gate,), daemon=True)
    thread.start()
    yield
    gate.set()

def test_sleeps(beside):
    time.sleep(60)

def test_waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def test_swallows_what_ends_it():
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)

def test_waits_for_two_interrupts():
    for _ in range(2):
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass

@pytest.fixture
def never_ends():
    yield
    time.sleep(60)

def test_with_a_fixture_that_hangs(never_ends):
    pass

def test_good():
    time.sleep(0.1)
"""


def run(folder: Path, tests: str, again_s: float, last_s: float) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(
        f'import sys\nsys.path.append({str(ROOT)!r})\npytest_plugins = ["tests.watchdog"]\n'
        f"from tests import watchdog\nwatchdog.AGAIN_S, watchdog.LAST_S = {again_s}, {last_s}\n"
    )
    (folder / "test_some.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_timeout",
        "--timeout",
        "0.3",
    ]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # Hypothesis and others take a while to import
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=200)


def test_a_test_that_hangs_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS, 0.3, 60)
    outcomes = {line.split()[1].partition("::")[2]: line.split()[0] for line in done.stdout.splitlines()
                if line.startswith(("PASSED", "FAILED", "ERROR")) and "::" in line}  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert outcomes == {
        "test_sleeps": "FAILED",
        "test_waits_for_a_lock": "FAILED",
        "test_swallows_what_ends_it": "FAILED",
        "test_waits_for_two_interrupts": "FAILED",
        "test_with_a_fixture_that_hangs": "ERROR",
        "test_good": "PASSED",
    }, done.stdout
    assert "wait_in_a_thread" in done.stdout and "lock.acquire()" in done.stdout and "Timeout (>0.3s)" in done.stdout


def test_a_process_that_cannot_be_interrupted_is_ended_after_all_stacks_are_out(tmp_path: Path) -> None:
    tests = "import signal, time\ndef test_deaf():\n    signal.signal(2, signal.SIG_IGN)\n    time.sleep(60)\n"
    done = run(tmp_path, tests, 0.1, 0.2)
    assert done.returncode == 70
    assert "test_deaf" in done.stderr


def test_the_main_thread_of_tests_may_serve_the_loop_as_that_of_programs() -> None:
    assert may_serve()


@pytest.mark.usefixtures("alarm_handler")
def test_with_a_handler_it_may_not() -> None:
    assert not may_serve()


def test_a_thread_that_no_handler_runs_in_may_always_serve() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert not may_serve()
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(may_serve).result()
    finally:
        signal.signal(signal.SIGUSR1, before)
