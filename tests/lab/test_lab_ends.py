"""However tests end, their machines end: after a failure, after SIGKILL, with other runs beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.lab import require
from tests.lab.machine import REPOSITORY
from tests.lab.plugin import require_namespaces
from tests.patience import PATIENCE_S

LABELLED = "A_LAB_OF_THIS_TEST"

FAILING = """
import subprocess

def test_that_fails(lab):
    one, two = lab.machines(2)
    lab.delay(two, 0.01)
    lab.nat(one)
    one.popen(["sh", "-c", "setsid sleep 100 & sleep 100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    two.python("input()", stdin=subprocess.PIPE)
    assert one is two
"""

WAITING = """
import subprocess, sys, time

def test_that_waits(lab):
    one, two = lab.machines(2)
    lab.delay(two, 0.01)
    shell = one.popen(["sh", "-c", "setsid sleep 100 & echo; sleep 100"], stdout=subprocess.PIPE)
    shell.stdout.readline()
    print("ready", file=sys.__stderr__, flush=True)
    time.sleep(100)
"""

CARRYING = """
from tests.lab.measuring import carry, connected

def test_that_carries(lab):
    one, two = lab.machines(2)
    lab.slow(two, 20e6)
    with connected(one, two) as (dialled, accepted):
        assert carry(dialled, accepted, 1 << 20) < 5
"""


def start_tests(folder: Path, source: str, label: str, *before: str, **environment: str) -> subprocess.Popen[str]:
    """Start pytest for one file; everything that it starts carries the label in its environment."""
    file = folder / "test_inner.py"
    file.write_text(source)
    return subprocess.Popen(
        [*before, sys.executable, "-m", "pytest", "-rs", "-W", "error", "-p", "no:cacheprovider",
         "-p", "tests.lab.plugin", "-s", str(file)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), LABELLED: label, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def labelled(label: str) -> list[str]:
    """What runs with this label anywhere."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(LABELLED) == label:
                found.append(f"{process.pid} {process.status()} {process.cmdline()}")
        except (psutil.Error, OSError):
            pass
    return found


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    require_namespaces()


def test_a_failing_test_leaves_nothing_and_fails_once(tmp_path: Path) -> None:
    out, _ = start_tests(tmp_path, FAILING, str(tmp_path)).communicate(timeout=PATIENCE_S)
    assert "assert one is two" in out
    assert "1 failed in" in out  # and no error of a fixture, and no warning about something unclosed
    assert labelled(str(tmp_path)) == []


def test_after_sigkill_of_the_tests_the_kernel_ends_their_machines(tmp_path: Path) -> None:
    tests = start_tests(tmp_path, WAITING, str(tmp_path))
    with tests:
        try:
            assert tests.stderr and tests.stderr.readline() == "ready\n"
            running = labelled(str(tmp_path))
        finally:
            tests.send_signal(signal.SIGKILL)
        tests.communicate(timeout=PATIENCE_S)  # also ends only when nobody holds the pipes any more
    assert len(running) >= 6, running  # pytest, two of process 1, a relay, the shell and its daemon
    deadline = time.monotonic() + 120
    while (left := labelled(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def test_labs_of_several_test_runs_work_side_by_side(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    runs = [start_tests(folder, CARRYING, str(folder)) for folder in folders]
    outputs = [run.communicate(timeout=PATIENCE_S)[0] for run in runs]
    assert all("1 passed" in out for out in outputs), outputs


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_without_the_right_to_make_namespaces_a_test_skips_by_hand_and_fails_in_ci(
    tmp_path: Path, ci: str, outcome: str
) -> None:
    require("setpriv")
    weak = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    out, _ = start_tests(tmp_path, CARRYING, str(tmp_path), *weak, CI=ci).communicate(timeout=PATIENCE_S)
    assert outcome in out
    assert "needs root and the right to make namespaces" in out


def test_a_missing_program_skips_by_hand_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"needs no-such-program: run tests/lab/install.sh as root"):
        require("sh", "no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program"):
        require("sh", "no-such-program")
    require("sh", "ip")
