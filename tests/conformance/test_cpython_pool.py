"""CPython's own pool tests, run against `ropewalk.Pool`: each in a process of its own, with a time limit.

The ids are discovered from the interpreter that runs this, so that a test that
a new Python brings is not silently missed. `runner.py` explains how to run one
by hand and how to prove the harness with `multiprocessing.Pool` itself. That a
test leaves no process behind is seen by the fixture in `tests/conftest.py`.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from tests.conformance.runner import NO_TESTS, PASSED, SKIPPED

RUNNER = pathlib.Path(__file__).with_name("runner.py")
POOL = os.environ.get("CONFORMANCE_POOL", "ropewalk")
LIMIT_S = 60.0

# Tests that cannot apply, each with the reason. None: `Pool` shows the private names that these tests look at.
LEFT_OUT: dict[str, str] = {}

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
    code, output = run_alone(name)
    if code == SKIPPED:
        pytest.skip(output.strip().splitlines()[-1])
    assert code == PASSED, output


def test_everything_left_out_exists() -> None:
    assert set(LEFT_OUT) <= set(ALL)


def run_alone(name: str) -> tuple[int | str, str]:
    """Exit code and output of one test; the code is words if the test did not end in time."""
    command = [sys.executable, str(RUNNER), *name.split("."), "--stacks-after", str(LIMIT_S - 5)]
    # Output goes to a file: the end of a pipe would come only with the end of all that inherited it.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | str = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = f"did not end in {LIMIT_S} s"
        output.seek(0)
        return code, f"{name}: exit code {code}\n{output.read()}"
