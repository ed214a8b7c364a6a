"""Runs CPython's own tests of concurrent.futures' executors against `ropewalk.Executor`, in this process.

The bodies live in `test.test_concurrent_futures` (a package, or one module before Python 3.12) of the interpreter that
runs this. They reach their executor in three ways, and each way is turned round here:

    self.executor_type                          the mixin's attribute            -> EXECUTOR
    futures.ProcessPoolExecutor(...)            a module seen as a global name   -> EXECUTOR, in this process only
    "from concurrent.futures import X" in a     text handed to a new interpreter -> the import line names ours
    script for a new interpreter

and `FutureTests` get the futures of our executor, which here belong to none.

By hand, with an interpreter that has the tests and Ropewalk:

    python tests/conformance/futures_runner.py --list
    python tests/conformance/futures_runner.py ProcessPoolSpawnWaitTest.test_timeout
    python tests/conformance/futures_runner.py ProcessPoolSpawnWaitTest.test_timeout --original
                                                            the same against ProcessPoolExecutor, to prove the harness

It writes verdicts and ends tests that take too long as `runner.py` does, and has its exit codes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import faulthandler
import importlib
import itertools
import pathlib
import pkgutil
import sys
import types
import unittest
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
TESTS = "test.test_concurrent_futures"
# Ropewalk's processes start like those of "spawn": from nothing, and without what was inherited.
MIXIN = "ProcessPoolSpawnMixin"
#: Seconds in place of those of a body: for workers to start, and to let go of an argument.
LONGER: dict[tuple[str, str], dict[object, object]] = {
    ("ExecutorTest", "test_map_timeout"): {5: 20, (0, 0, 6): (0, 0, 25)},
    ("ProcessPoolExecutorTest", "test_ressources_gced_in_workers"): {1: 60},
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run CPython's executor tests against ropewalk.Executor.")
    parser.add_argument("tests", nargs="*", help="such as ProcessPoolSpawnWaitTest.test_timeout")
    parser.add_argument("--list", action="store_true", help="print the ids of all tests")
    parser.add_argument("--original", action="store_true", help="test ProcessPoolExecutor instead")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="how long one test may take")
    parser.add_argument("--verdicts", type=pathlib.Path, metavar="FILE", help="write a line of JSON for each test")
    options = parser.parse_args()
    sys.path.append(str(ROOT))
    runner: Any = importlib.import_module("tests.conformance.runner")
    turning: Any = importlib.import_module("tests.conformance.turning")
    faulthandler.dump_traceback_later(options.limit, exit=True)
    modules = test_modules()
    for module, ((case, body), seconds) in itertools.product(modules, LONGER.items()):
        if body in vars(getattr(module, case, object)):
            turning.lengthen(getattr(module, case), body, seconds)
    cases = {name: case for module in modules for name, case in vars(module).items() if is_for_processes(case)}
    everything = [f"{name}.{method}" for name, case in sorted(cases.items()) for method in methods(case)]
    if options.list:
        print("\n".join(everything))
        return runner.PASSED
    if unknown := set(options.tests) - set(everything):
        parser.error(f"no test {', '.join(unknown)}; --list shows them all")
    names = {test.partition(".")[0] for test in options.tests}
    if not options.original:
        turn_to_ropewalk(modules)
        if "FutureTests" in names:
            turn_futures(modules)
    tests = [cases[name](method) for name, _, method in (test.partition(".") for test in options.tests)]
    return runner.run(tests, options.limit, options.verdicts)


def test_modules() -> list[types.ModuleType]:
    package = importlib.import_module(TESTS)
    parts = [part.name for part in pkgutil.iter_modules(getattr(package, "__path__", []))]
    return [package, *(importlib.import_module(f"{TESTS}.{part}") for part in parts if part != "__main__")]


def is_for_processes(case: Any) -> bool:
    """Whether it is a test case of CPython's own for futures, or for an executor of processes that are spawned."""
    if not isinstance(case, type) or not issubclass(case, unittest.TestCase):
        return False
    return case.__name__ == "FutureTests" or any(base.__name__ == MIXIN for base in case.__mro__)


def methods(case: type[unittest.TestCase]) -> list[str]:
    return list(unittest.defaultTestLoader.getTestCaseNames(case))


def turn_to_ropewalk(modules: list[types.ModuleType]) -> None:
    home = "ropewalk.compat.executor"
    executor = importlib.import_module(home).Executor
    concurrent.futures.ProcessPoolExecutor = executor
    line = "from concurrent.futures import Executor"
    for module in modules:
        mixin = getattr(module, MIXIN, None)
        if mixin is not None:
            mixin.executor_type = executor
        run_script = getattr(module, "assert_python_ok", None)
        if run_script is not None:
            module.assert_python_ok = lambda *args, run=run_script: run(  # type: ignore[attr-defined]
                *(arg.replace(line, f"from {home} import Executor") for arg in args)
            )


def turn_futures(modules: list[types.ModuleType]) -> None:
    future = importlib.import_module("ropewalk.compat.task_futures").TaskFuture
    for module in modules:
        if hasattr(module, "Future"):
            module.Future = lambda: future(NoPool())  # type: ignore[attr-defined]


class NoPool:
    """What a future tells its pool goes nowhere."""

    def _sweep_soon(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
