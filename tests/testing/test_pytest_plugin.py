"""The fixtures for users' tests, in a run of pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, threading
import pytest
import ropewalk as rw
from ropewalk.testing import pytest_plugin

pytest_plugin.GRACE_S = 0.5

def pid(_):
    return os.getpid()

def test_workers_are(ropewalk_pool, pytestconfig):
    here = set(ropewalk_pool.map(pid, range(4))) == {os.getpid()}
    assert here == pytestconfig.getoption("--ropewalk-threads")

def test_the_store_is_of_the_test(ropewalk_store, tmp_path):
    assert os.environ["ROPEWALK_STORE"] == str(ropewalk_store) and ropewalk_store.parent == tmp_path

@pytest.mark.usefixtures("ropewalk_leak_check")
def test_nothing_is_left(ropewalk_session):
    queue = rw.Queue()
    queue.put(1)
    with rw.Pool(2) as pool:
        assert pool.map(abs, [-1]) == [queue.get()]
    assert len(ropewalk_session.agent_pids()) == 1

kept = []

@pytest.fixture(autouse=True, scope="session")
def _end():
    yield
    for end in kept:
        end()

@pytest.mark.usefixtures("ropewalk_leak_check")
def test_a_pool_is_left():
    kept.append(rw.Pool(1, name="forgotten").terminate)

@pytest.mark.usefixtures("ropewalk_leak_check")
def test_a_child_is_left():
    kept.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE).communicate)

@pytest.mark.usefixtures("ropewalk_leak_check")
def test_a_thread_is_left():
    over = threading.Event()
    threading.Thread(target=over.wait, name="waiter").start()
    kept.append(over.set)
"""


def outcome(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text('pytest_plugins = ["ropewalk.testing.pytest_plugin"]\n')
    (folder / "test_mine.py").write_text(PROGRAM)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROPEWALK_", "PYTEST_"))}
    clean["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Hypothesis and others take a while to import
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--basetemp=made",
            *options,
            "test_mine.py",
        ],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_fixtures_give_what_they_say_and_find_what_is_left(tmp_path: Path) -> None:
    said = outcome(tmp_path)
    assert "6 passed, 3 errors" in said, said
    assert set(re.findall(r"^ERROR test_mine.py::(\w+)", said, re.MULTILINE)) == {
        "test_a_pool_is_left",
        "test_a_child_is_left",
        "test_a_thread_is_left",
    }
    assert re.search(r"was still there: process forgotten\.0\. End pools", said)
    assert re.search(r"was still there: child process \d+\. End pools", said)
    assert "was still there: thread waiter. End pools" in said


def test_the_pool_may_have_threads(tmp_path: Path) -> None:
    said = outcome(tmp_path, "--ropewalk-threads", "-k", "test_workers_are")
    assert "1 passed" in said, said
