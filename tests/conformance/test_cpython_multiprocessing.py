"""CPython's own tests of multiprocessing, run against Ropewalk. See `runner.py` to run some by hand.

The ids are discovered from the interpreter that runs this, so that a test that
a new Python brings is not silently missed. A class runs in one process,
`batches` says how; its end is an item too, with the name of the class alone.

By default those of pools run, over processes; the rest runs in `make soak`. What they ask of queues, locks,
connections, managers, shared memory and processes, tests/sharing and tests/compat ask too.
"""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import batches
from tests.conformance.left_out import LEFT_OUT, LEFT_OUT_OF_NEWER
from tests.conformance.runner import NO_TESTS, PASSED
from tests.conformance.turning import MODULE, ORIGINAL
from tests.patience import PATIENCE_S

AT_ONCE = 3  # most of them wait for something
RUNNER = [sys.executable, str(Path(__file__).with_name("runner.py"))]

listing = subprocess.run([*RUNNER, "--list"], capture_output=True, text=True, timeout=PATIENCE_S)
if listing.returncode == NO_TESTS:
    pytest.skip(listing.stdout.strip(), allow_module_level=True)
assert listing.returncode == PASSED, listing.stderr
TESTS = listing.stdout.split()
CLASSES = list(dict.fromkeys(test.partition(".")[0] for test in TESTS))
BY_DEFAULT = {"WithProcessesTestPool", "WithProcessesTestPoolWorkerErrors", "WithProcessesTestPoolWorkerLifetime"}


def reason_to_leave_out(name: str) -> str | None:
    """For a test that is left out, or whose class is."""
    reasons = LEFT_OUT | LEFT_OUT_OF_NEWER
    return None if MODULE == ORIGINAL else reasons.get(name) or reasons.get(name.partition(".")[0])


def marked(names: list[str]) -> list[Any]:
    """As parameters of a test."""
    return [
        name if batches.class_of(name) in BY_DEFAULT else pytest.param(name, marks=pytest.mark.soak) for name in names
    ]


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> dict[str, batches.Verdict]:
    """Of all tests that were chosen: they run before the first of them is told, several at once."""
    # pytest's own, for this one item: it takes the time of them all.
    faulthandler.cancel_dump_traceback_later()
    chosen = batches.chosen_names(request)
    tests = [test for test in TESTS if chosen & {test, test.partition(".")[0]} and not reason_to_leave_out(test)]
    return batches.run_all(RUNNER, tests, AT_ONCE)


@pytest.mark.parametrize("name", marked(TESTS))
@pytest.mark.timeout(1800)
def test_cpython(name: str, verdicts: dict[str, batches.Verdict]) -> None:
    if reason := reason_to_leave_out(name):
        pytest.skip(reason)
    batches.tell(verdicts[name])


@pytest.mark.parametrize("name", marked([name for name in CLASSES if not reason_to_leave_out(name)]))
@pytest.mark.timeout(1800)
def test_a_class_ends_by_itself_and_leaves_nothing(name: str, verdicts: dict[str, batches.Verdict]) -> None:
    batches.tell(verdicts[name])


def test_everything_left_out_exists() -> None:
    assert LEFT_OUT.keys() | BY_DEFAULT <= {*TESTS, *CLASSES}
