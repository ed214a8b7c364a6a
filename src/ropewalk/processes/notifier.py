"""Wakes whoever waits for a change, and is whole after an interrupt at any moment.

    who waits:  hang up a lock that is locked ─▶ true already? ─▶ take it down
                                   ▲               │ no
                                   └─ sleep until somebody unlocks it
    who changes something:  change it ─▶ unlock all locks that hang there

This is for what the main thread waits for beside others. `threading.Condition` is not: it
is written in Python, and Ctrl-C between two steps of its `__enter__` or `__exit__` leaves
its lock locked for ever, so that every other thread that comes there hangs. A bell has no
lock of its own that anybody could leave locked. It guards nothing either: what is waited
for has to be read and changed in single steps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

#: Whoever waits looks this often by himself: an interrupt may have struck between a change and its ring.
_LOOK_UP_S = 1.0


class Notifier:
    """Wakes whoever waits for a change. For any thread."""

    def __init__(self) -> None:
        self._sleepers: set[threading.Lock] = set()

    def ring(self) -> None:
        """Something was changed: all who wait look at it."""
        for lock in list(self._sleepers):
            with contextlib.suppress(RuntimeError):  # it was unlocked by an earlier ring
                lock.release()

    def wait_until(self, true: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Wait until something is true.

        Args:
            true: asked at first and after each ring.
            timeout_s: seconds, None waits for ever.

        Returns:
            False if the time was over first.
        """
        due = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        lock = threading.Lock()
        lock.acquire()
        try:
            self._sleepers.add(lock)
            while not true():
                left_s = due - time.monotonic()
                if left_s <= 0:
                    return False
                lock.acquire(timeout=min(left_s, _LOOK_UP_S))
            return True
        finally:
            self._sleepers.discard(lock)


__all__ = ["Notifier"]
