"""Runs one of CPython's own pool tests against `ropewalk.Pool`, in this process.

By hand, from the root of the repository:

    python tests/conformance/runner.py --list                     the ids of all tests, one a line
    python tests/conformance/runner.py _TestPool test_apply       one test
    python tests/conformance/runner.py _TestPool test_apply --pool multiprocessing
                                                                  the same against the original, to prove the harness

All of them, each in a process of its own:

    pytest tests/conformance
    CONFORMANCE_POOL=multiprocessing pytest tests/conformance     proves the harness

The exit code is 0 for passed, 1 for failed, 77 for skipped and 78 where this
interpreter ships no tests of its own (Debian's packages do not).
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import pathlib
import sys
import unittest
from typing import Any

PASSED, FAILED, SKIPPED, NO_TESTS = 0, 1, 77, 78


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one of CPython's pool tests against another pool.")
    parser.add_argument("case", nargs="?", help="class of the test, such as _TestPool")
    parser.add_argument("method", nargs="?", help="name of the test, such as test_apply")
    parser.add_argument("--list", action="store_true", help="print the ids of all tests")
    parser.add_argument("--pool", help="module whose Pool is tested (default: $CONFORMANCE_POOL, else ropewalk)")
    parser.add_argument("--stacks-after", type=float, metavar="SECONDS", help="print where all threads are, and go on")
    options = parser.parse_args()

    if options.pool:
        os.environ["CONFORMANCE_POOL"] = options.pool
    if options.stacks_after:
        faulthandler.dump_traceback_later(options.stacks_after)
    try:
        importlib.import_module("test._test_multiprocessing")
    except (ImportError, unittest.SkipTest) as reason:
        print(f"this interpreter ({sys.executable}) has no usable test._test_multiprocessing: {reason}")
        return NO_TESTS
    if options.list:
        # The pool under test is of no matter here, so that a broken one does not hide the list.
        os.environ["CONFORMANCE_POOL"] = "multiprocessing"
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    cases: dict[str, type[unittest.TestCase]] = importlib.import_module("retargeted").CASES

    if options.list:
        print("\n".join(f"{name}.{method}" for name, case in cases.items() for method in methods(case)))
        return PASSED
    if options.case not in cases or options.method not in methods(cases[options.case]):
        parser.error(f"no test {options.case}.{options.method}; --list shows them all")
    return run(cases[options.case](options.method))


def methods(case: type[unittest.TestCase]) -> list[str]:
    return list(unittest.defaultTestLoader.getTestCaseNames(case))


def run(test: unittest.TestCase) -> int:
    # A suite, and not the test by itself: only a suite calls setUpClass, where _TestPool makes its pool.
    result: Any = unittest.TextTestRunner(verbosity=2, warnings="default").run(unittest.TestSuite([test]))
    if not result.wasSuccessful():
        return FAILED
    if result.skipped:
        print(f"skipped: {result.skipped[0][1]}")
        return SKIPPED
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
