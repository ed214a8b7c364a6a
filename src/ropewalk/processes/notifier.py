"""Wakes threads that wait for a change, and stays intact after an interrupt at any moment.

    a waiting thread:   add a locked lock to the list ─▶ true already? ─▶ remove it
                                                  ▲        │ no
                                                  └─ sleep until another thread unlocks it
    a changing thread:  make the change ─▶ unlock all locks in the list

This is for conditions for which the main thread waits beside others. `threading.Condition` is unsuitable: it is written
in Python, and Ctrl-C between two steps of its `__enter__` or `__exit__` leaves its lock locked for ever, so that every
other thread that needs it hangs. A notifier has no lock of its own that could stay locked. It guards nothing either:
the state that is waited for has to be read and changed in single steps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

_LOOK_UP_S = 1.0
"""A waiting thread checks this often (seconds) by itself: an interrupt may have struck between a change and its ring.
"""


class Notifier:
    """Wakes threads that wait for a change. For any thread."""

    def __init__(self) -> None:
        self._sleepers: set[threading.Lock] = set()

    def ring(self) -> None:
        """Wake all waiting threads after a change."""
        for lock in list(self._sleepers):
            with contextlib.suppress(RuntimeError):  # an earlier ring unlocked it
                lock.release()

    def wait_until(self, true: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Wait until a condition is true.

        Args:
            true: the condition, called at first and after each ring.
            timeout_s: seconds, None waits for ever.

        Returns:
            False if the timeout passed first.
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
