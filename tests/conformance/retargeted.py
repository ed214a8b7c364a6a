"""CPython's pool tests with another pool behind them: the same bodies, the same assertions.

The bodies live in `test._test_multiprocessing` of the interpreter that runs
this. They reach their pool in three ways, and each way is turned round here:

    self.Pool(...)                              the mixin's attribute             -> POOL
    multiprocessing.Pool(...)                   a module seen as a global name    -> a stand-in, other in `Pool` only
    "from multiprocessing import Pool" in a     text handed to a new interpreter  -> the import line names POOL's module
    script for a new interpreter

Nothing else is replaced: `multiprocessing.TimeoutError`, `multiprocessing.pool.*`,
managers and the helpers of `test.support` are the real ones. CPython's
`setUpModule` is not called, because it sets the start method for the process.

This is a module of its own, and not part of `runner`, because workers import it:
two tests send a bound class method, which travels as its class's name.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import types
import unittest
from typing import Any

import test._test_multiprocessing as cpython  # pyright: ignore[reportMissingImports]
from test.support import script_helper

# Workers import this module too and then take the default, which does not matter to them: they make no pool.
POOL_MODULE = os.environ.get("CONFORMANCE_POOL", "ropewalk")
POOL: Any = importlib.import_module(POOL_MODULE).Pool

BODIES = ("_TestPool", "_TestPoolWorkerErrors", "_TestPoolWorkerLifetime", "TestInitializers")


class MultiprocessingWithPool(types.ModuleType):
    """`multiprocessing` to the eye of the test module, with POOL as its pool factory."""

    Pool = staticmethod(POOL)

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)


class ProcessesMixin(cpython.ProcessesMixin):
    """What the bodies find on `self`, as in CPython's own mixin, with POOL as its pool factory."""

    Pool = staticmethod(POOL)


def retarget(body: type) -> type[unittest.TestCase]:
    """The test case for one of CPython's bodies; the plain ones have it already."""
    bases = (body,) if issubclass(body, unittest.TestCase) else (body, ProcessesMixin, unittest.TestCase)
    return type(body.__name__, bases, {"__module__": __name__})


def run_script_with_pool(*args: str, **env: str) -> Any:
    """`assert_python_ok`, with the scripts' import of `multiprocessing.Pool` turned to POOL."""
    line = "from multiprocessing import Pool"
    return run_script(*(arg.replace(line, f"from {POOL_MODULE} import Pool") for arg in args), **env)


run_script = script_helper.assert_python_ok
script_helper.assert_python_ok = run_script_with_pool
cpython.multiprocessing = MultiprocessingWithPool("multiprocessing")

CASES = {name: retarget(getattr(cpython, name)) for name in BODIES}
globals().update(CASES)  # by these names the workers find the classes again
