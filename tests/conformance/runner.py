"""Runs CPython's own tests of multiprocessing against Ropewalk, in this process.

By hand, from the root of the repository:

    python tests/conformance/runner.py --list                       the ids of all tests, one a line
    python tests/conformance/runner.py WithProcessesTestQueue       all tests of one class
    python tests/conformance/runner.py WithProcessesTestQueue.test_put TestWait.test_wait
    python tests/conformance/runner.py TestWait --module multiprocessing
                                                                    the same against the original, to prove the harness

All of them, watched and each with its own verdict:

    pytest tests/conformance
    CONFORMANCE_MODULE=multiprocessing pytest tests/conformance     proves the harness

A test, or what comes between two, that takes too long ends the process, after
printing where all threads are. The exit code is 0 for passed, 1 for failed and 78 where this interpreter ships no
tests of its own (Debian's packages do not).
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import pathlib
import sys
import unittest
from typing import IO, Any, cast

PASSED, FAILED, NO_TESTS = 0, 1, 78


def main() -> int:
    parser = argparse.ArgumentParser(description="Run CPython's own tests of multiprocessing against another module.")
    parser.add_argument("names", nargs="*", help="tests, such as WithProcessesTestQueue.test_put, or classes of them")
    parser.add_argument("--list", action="store_true", help="print the ids of all tests")
    parser.add_argument("--module", help="the module under test (default: $CONFORMANCE_MODULE, else ropewalk)")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="how long one test may take")
    parser.add_argument("--verdicts", type=pathlib.Path, metavar="FILE", help="write a line of JSON for each test")
    options = parser.parse_args()

    faulthandler.dump_traceback_later(options.limit, exit=True)
    if options.module:
        os.environ["CONFORMANCE_MODULE"] = options.module
    try:
        importlib.import_module("test._test_multiprocessing")
    except (ImportError, unittest.SkipTest) as reason:
        print(f"this interpreter ({sys.executable}) has no usable test._test_multiprocessing: {reason}")
        return NO_TESTS
    if options.list:
        # The module under test is of no matter here, so that a broken one does not hide the list.
        os.environ["CONFORMANCE_MODULE"] = "multiprocessing"
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    cases: dict[str, type[unittest.TestCase]] = importlib.import_module("retargeted").CASES

    everything = [f"{name}.{method}" for name, case in cases.items() for method in methods(case)]
    if options.list:
        print("\n".join(everything))
        return PASSED
    tests: list[unittest.TestCase] = []
    for name in options.names:
        found = [test for test in everything if test == name or test.startswith(f"{name}.")]
        if not found:
            parser.error(f"no test {name}; --list shows them all")
        tests += [cases[test.partition(".")[0]](test.partition(".")[2]) for test in found]
    return run(tests, options.limit, options.verdicts)


def methods(case: type[unittest.TestCase]) -> list[str]:
    return list(unittest.defaultTestLoader.getTestCaseNames(case))


def run(tests: list[unittest.TestCase], limit_s: float, verdicts: pathlib.Path | None) -> int:
    with open(verdicts or os.devnull, "w") as lines:
        # A suite, and not test by test: only a suite calls setUpClass, where _TestPool makes its pool.
        runner = unittest.TextTestRunner(verbosity=2, warnings="default", resultclass=cast("Any", Verdicts))
        Verdicts.lines, Verdicts.limit_s = lines, limit_s
        return PASSED if runner.run(unittest.TestSuite(tests)).wasSuccessful() else FAILED


class Verdicts(unittest.TextTestResult):
    """Writes a line for each test when it begins and one when it ends, and restarts the clock each time."""

    lines: IO[str]
    limit_s: float
    _errors_before = _failures_before = 0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._errors_before, self._failures_before = len(self.errors), len(self.failures)
        self._write(test, "begun")
        faulthandler.dump_traceback_later(self.limit_s, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        # The next wait may be that of tearDownClass, or of the interpreter's end.
        faulthandler.dump_traceback_later(self.limit_s, exit=True)
        # More than one for a test with subtests.
        problems = self.errors[self._errors_before :] + self.failures[self._failures_before :]
        skips = [reason for skipped, reason in self.skipped if skipped is test]
        verdict = "failed" if problems else "skipped" if skips else "passed"
        self._write(test, verdict, "\n".join(words for _, words in problems) or "\n".join(skips))
        super().stopTest(test)

    def _write(self, test: unittest.TestCase, verdict: str, words: str = "") -> None:
        name = ".".join(test.id().split(".")[-2:])  # without the module
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        printed = os.fstat(2).st_size  # so far, where output goes to a file
        line = {"test": name, "verdict": verdict, "words": words, "printed": printed}
        print(json.dumps(line), file=self.lines, flush=True)


if __name__ == "__main__":
    sys.exit(main())
