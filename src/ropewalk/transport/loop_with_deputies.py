"""A loop that serves calls, and so runs user code: two switches between threads would cost more than a small call.

Deputies are waiting threads: when a call between `enter` and `leave` lasts longer than `DEPUTY_S`, or announces that it
will (`hand_over`), a deputy takes over the loop.

    owner:  poll ─▶ handle ─▶ enter ─▶ user's method ............ leave: not the owner any more
    deputy:         (looks every DEPUTY_S) ──▶ takes over ─▶ poll ─▶ handle ─▶ ...
"""

from __future__ import annotations

import contextlib
import threading

from ropewalk.transport.looking import Looking
from ropewalk.transport.loop import Loop

DEPUTY_S = 0.002
"""A deputy takes the loop over from a call that lasts this long to twice as long (seconds)."""
_IDLE_LOOKS = 20
"""After this many looks at a loop that makes no calls, the deputy sleeps until there is one."""


class LoopWithDeputies(Loop):
    """A loop that another thread takes over while user code runs in the first one."""

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._looking = Looking()
        self._succession = threading.Lock()
        self._entered = 0  # the number of the call that the loop's thread is in, or 0
        self._num_entered = 0
        self._wanted = False
        self._watching = threading.Lock()
        self._num_waiting = 0
        self._deputy_sleeps = False
        self._alarm = threading.Lock()
        self._alarm.acquire()

    def start(self, name: str) -> None:
        """Run the loop in a thread of its own, which a deputy watches."""
        self._name = name
        super().start(name)
        self._appoint()

    def enter(self) -> int:
        """Note, before user code, that a deputy may take over; from the loop's thread.

        Returns the argument for `leave`.
        """
        self._num_entered += 1
        self._entered = self._num_entered
        if self._deputy_sleeps:
            self._raise_alarm()
        return self._tenure

    def leave(self, entered: int) -> bool:
        """Return, after user code, whether this thread still runs the loop.

        If not, it must not touch any state of the loop.
        """
        with self._succession:
            if self._tenure != entered:
                return False
            self._entered, self._wanted = 0, False
            return True

    def hand_over(self) -> None:
        """Note that this thread is going to wait: if it runs the loop, inside `enter`, a deputy takes over at once."""
        if not self._entered or self._owner != threading.get_ident():
            return
        with self._succession:
            self._wanted = self._entered != 0
        self._raise_alarm()

    @property
    def is_entered_here(self) -> bool:
        """Return whether this thread runs the loop and is in user code."""
        return self._entered != 0 and self._owner == threading.get_ident()

    def _wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        return self._looking.poll(self._poll.poll, timeout_s)

    def _close(self) -> None:
        self._raise_alarm()
        super()._close()

    def _raise_alarm(self) -> None:
        self._deputy_sleeps = False
        with contextlib.suppress(RuntimeError):  # it is set already
            self._alarm.release()

    def _appoint(self) -> None:
        with self._succession:
            if self._num_waiting:
                return
            self._num_waiting += 1
        threading.Thread(target=self._deputize, name=f"{self._name}-deputy", daemon=True).start()

    def _deputize(self) -> None:
        """Wait for a call that lasts, take over, serve until another thread takes over, wait again."""
        while True:
            with self._watching:
                tenure = self._watch()
            with self._succession:
                self._num_waiting -= 1
            if tenure is None:
                self._raise_alarm()  # the next deputy in the queue must end as well
                return
            self._appoint()
            self._serve(tenure)
            with self._succession:
                if self._num_waiting >= 2 or not self._running:
                    return  # there are enough
                self._num_waiting += 1

    def _watch(self) -> int | None:
        """Look at the loop periodically; returns the tenure that begins, or None when the loop has ended."""
        last, num_idle = 0, 0
        while self._running:
            entered = self._entered
            if entered and (entered == last or self._wanted):
                with self._succession:
                    if self._entered == entered:
                        self._entered, self._wanted = 0, False
                        self._tenure += 1
                        self._owner = threading.get_ident()
                        if self._reading:
                            self._busy[self._reading] = None  # it may hold messages that are not announced again
                        return self._tenure
            num_idle = 0 if entered or self._num_entered != last else num_idle + 1
            last = self._num_entered
            if num_idle < _IDLE_LOOKS:
                self._alarm.acquire(timeout=DEPUTY_S)
                continue
            self._deputy_sleeps = True
            if not self._entered and self._num_entered == last and self._running:
                self._alarm.acquire()
            self._deputy_sleeps, num_idle = False, 0
        return None


__all__ = ["DEPUTY_S", "LoopWithDeputies"]
