"""CPython's own tests of multiprocessing with another module behind them: the same bodies, the same assertions.

`turning` turns the bodies round. The test cases are made by CPython's own function,
as in its `test_multiprocessing_spawn`, and bear the names that it shows:
WithProcessesTestQueue, WithManagerTestQueue, TestWait.

This is a module of its own, and not part of `runner`, because processes import it:
bodies send functions of their class, which travel as the name of the class.
"""

from __future__ import annotations

import contextlib
import functools
import time
import unittest
from collections.abc import Callable
from typing import Any

import cpython_bodies
from turning import MODULE, ORIGINAL, lengthen

bodies: Any = cpython_bodies

PATIENCE_S = 60.0  # shorter than the limit of a test: what waits in vain says for what


class Counted:
    """In place of `_DummyList`, whose memory travels only to multiprocessing's own processes."""

    def __init__(self) -> None:
        self.length = bodies.multiprocessing.Value("i", 0)

    def append(self, _: object) -> None:
        with self.length.get_lock():
            self.length.value += 1

    def __len__(self) -> int:
        return self.length.value


def check_nothing(self: object, *args: object) -> None:
    """In place of a check of what is no promise: the time that a call took, or what multiprocessing is made of."""


def returns_eventually(_: unittest.TestCase, value: int, ask: Callable[..., int], *args: object) -> None:
    """In place of `assertReturnsIfImplemented`: those that a condition wakes get the lock one after the other."""
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.suppress(NotImplementedError):
        while ask(*args) != value and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)  # no more of them
        assert (found := ask(*args)) == value, f"{found} and not {value}"


# How long a body waits until others have done something, or goes on so that others find it at work: 0.1.
bodies.DELTA = 1.0
bodies._TestBarrier.defaultTimeout = PATIENCE_S
bodies._TestCondition.assertReturnsIfImplemented = returns_eventually
bodies.TestWait.assertLess = check_nothing  # of the seconds that a wait took
LONGER: dict[tuple[str, str], dict[object, object]] = {
    # Who is late, who interrupts a wait, and who asks for an answer gives the others time to get so far.
    ("_TestBarrier", "_test_timeout_f"): {1.0: 5.0},
    ("_TestBarrier", "_test_default_timeout_f"): {1.0: 5.0},
    ("_TestCondition", "_test_wait_result"): {1: 5},
    ("_TestConnection", "test_connection"): {0.1: 2.0},
    # What comes ends these.
    ("_TestListenerClient", "test_issue16955"): {1: PATIENCE_S},
    ("_TestPoll", "test_dont_merge"): {1.0: PATIENCE_S},
    ("_TestProcess", "_kill_process"): {10: int(PATIENCE_S)},
    ("_TestQueue", "test_get"): {1: PATIENCE_S},
}
for (case, body), seconds in LONGER.items():
    lengthen(getattr(bodies, case), body, seconds)
if MODULE != ORIGINAL:
    # Or each worker would take 0.3 s to import this; what set_forkserver_preload says is for processes alone.
    bodies.multiprocessing.Pool = functools.partial(bodies.multiprocessing.Pool, preload=[__name__])
    bodies.ProcessesMixin.Pool = staticmethod(bodies.multiprocessing.Pool)
    bodies._DummyList = Counted
    bodies._TestCondition.check_invariant = check_nothing  # its semaphores

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
