"""CPython's own pool tests, run against `ropewalk.Pool`: each in a process of its own, with a time limit.

The ids are discovered from the interpreter that runs this, so that a test that
a new Python brings is not silently missed. `runner.py` explains how to run one
by hand and how to prove the harness with `multiprocessing.Pool` itself.
"""

from __future__ import annotations

import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import psutil
import pytest

RUNNER = pathlib.Path(__file__).with_name("runner.py")
PASSED, SKIPPED, NO_TESTS = map(runpy.run_path(str(RUNNER)).get, ("PASSED", "SKIPPED", "NO_TESTS"))
POOL = os.environ.get("CONFORMANCE_POOL", "ropewalk")
LIMIT_S = 60.0
LEFT_BEHIND_LIMIT_S = 5.0  # design.md, promise on launchers that are gone: everything gone within 5 s

LEFT_OUT = {
    "_TestPool.test_make_pool": "reads the private list of processes, `pool._pool`",
    "_TestPool.test_resource_warning": "writes the private `pool._state` to bring a finished pool back to life",
    "_TestPoolWorkerLifetime.test_pool_worker_lifetime": "reads `pool._pool` and calls `pool._repopulate_pool()`",
}

listing = subprocess.run([sys.executable, RUNNER, "--list"], capture_output=True, text=True, timeout=LIMIT_S)
if listing.returncode == NO_TESTS:
    pytest.skip(listing.stdout.strip(), allow_module_level=True)
assert listing.returncode == PASSED, listing.stderr
ALL = listing.stdout.split()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.timeout(LIMIT_S + 30)
def test_cpython(name: str) -> None:
    if name in LEFT_OUT and POOL != "multiprocessing":
        pytest.skip(LEFT_OUT[name])
    mark = f"CONFORMANCE_RUN={uuid.uuid4()}"
    code, output = run_alone(name, dict([mark.split("=")]))
    left = wait_until_gone(mark)
    if code == SKIPPED:
        pytest.skip(output.strip().splitlines()[-1])
    assert code == PASSED, output
    assert not left, f"still alive {LEFT_BEHIND_LIMIT_S} s after the test ended: {left}"


def test_everything_left_out_exists() -> None:
    assert set(LEFT_OUT) <= set(ALL)


def run_alone(name: str, marks: dict[str, str]) -> tuple[int | str, str]:
    """Exit code and output of one test; the code is words if the test did not end in time."""
    command = [sys.executable, str(RUNNER), *name.split("."), "--stacks-after", str(LIMIT_S - 5)]
    # Output goes to a file: the end of a pipe would come only with the end of all that inherited it.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | marks, start_new_session=True
        )
        try:
            code: int | str = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = f"did not end in {LIMIT_S} s"
        output.seek(0)
        return code, f"{name}: exit code {code}\n{output.read()}"


def wait_until_gone(mark: str) -> list[str]:
    """What is left of the processes that inherited `mark`, after a grace period."""
    deadline = time.monotonic() + LEFT_BEHIND_LIMIT_S
    while (left := [describe(process) for process in psutil.process_iter() if carries(process, mark)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    return left


def carries(process: psutil.Process, mark: str) -> bool:
    try:
        return mark.encode() in pathlib.Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:  # it ended, or it is another user's
        return False


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (ended just now)"
