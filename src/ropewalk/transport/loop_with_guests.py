"""A loop that other threads may run while they would only wait for it: the loop of a session.

    own thread:  poll ─▶ handle ─▶ poll ......... away ................... poll ─▶ handle ─▶ ...
    guest:                  serve_until(done) ─▶ poll ─▶ handle ─▶ done: leaves

It never runs user code.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from ropewalk.transport.looking import Looking
from ropewalk.transport.loop import Loop

_LINGER_S = 0.001
"""How long the loop's own thread stays away after a guest has left, and how often it looks before it sleeps (seconds).
"""
_MOST_LOOKS = 20


class LoopWithGuests(Loop):
    """A loop that a waiting thread runs in place of the loop's own one."""

    def __init__(self) -> None:
        super().__init__()
        self._turning = threading.Lock()
        self._guest = threading.Lock()
        self._guest_thread = 0
        self._looking = Looking()
        self._visited = False
        self._left_at = 0.0
        self._sleeps = False
        self._resume = threading.Lock()
        self._resume.acquire()

    def serve_until(
        self,
        done: Callable[[], bool],
        deferred: AbstractContextManager[object],
        allowed: AbstractContextManager[object],
    ) -> None:
        """Run the loop in place of its own thread until `done()`, from a thread that would only wait for it.

        A thread that reads its own answer saves two switches between threads and between processors, which is most of
        the time of a small task. Returns early when another thread is running the loop in this way, or the loop ends.
        `done` must become true in the loop, or be followed by a `nudge`.

        Args:
            done: called after every turn.
            deferred: a context in which interrupts of this thread are postponed, as they must not leave the loop in the
                middle of a change.
            allowed: a context inside that one in which interrupts are delivered; entered while this waits.
        """
        with deferred:
            if not self._running or not self._guest.acquire(blocking=False):
                return
            self._guest_thread = threading.get_ident()
            self._visited = True
            try:
                if not self._turning.acquire(blocking=False):
                    self.call_soon(lambda: None)  # its own thread leaves its wait, and makes way
                    self._turning.acquire()
                try:
                    while self._running and not done():
                        with allowed:
                            events = self._looking.poll(self._poll.poll, self._timeout())
                        self._handle(events, self._tenure)
                finally:
                    self._turning.release()
            finally:
                self._visited = False
                self._left_at = time.monotonic()
                self._guest.release()
                if self._sleeps:
                    with contextlib.suppress(RuntimeError):  # it was told already
                        self._resume.release()

    def nudge(self) -> None:
        """Have the loop call `done` of its guest again, after a change outside of the loop. From any thread."""
        if self._visited and self._guest_thread != threading.get_ident():
            self.call_soon(lambda: None)

    def _make_way(self) -> None:
        """Leave the loop to a guest, and stay away for a moment after it has left: it often comes again at once."""
        looks = 0
        while self._running and (self._visited or time.monotonic() - self._left_at < _LINGER_S):
            looks += 1
            if looks < _MOST_LOOKS:
                self._resume.acquire(timeout=_LINGER_S)
                continue
            looks, self._sleeps = 0, True  # a long visit: the guest says when it leaves
            if self._visited:
                self._resume.acquire(timeout=1.0)
            self._sleeps = False

    def _turn(self, tenure: int) -> None:
        while self._running and self._tenure == tenure:
            with self._turning:
                if not self._visited:
                    self._handle(self._poll.poll(self._timeout()), tenure)
            self._make_way()


__all__ = ["LoopWithGuests"]
