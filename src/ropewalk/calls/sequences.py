"""Numbers the calls of one caller that a service runs once; at the caller's side.

next ──▶ 7        over(3), over(5), while 4 is still open        acknowledgement ──▶ "all up to 3, and 5"
"""

from __future__ import annotations

import threading


class Sequence:
    """Numbers the calls to one replica of a service; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._open: dict[int, None] = {}
        """Calls without an answer, in order."""
        self._over: list[int] = []
        """Calls that were over while an earlier one was open, and of which the service was not told yet."""

    def next(self) -> int:
        """The number of another call; `over` must follow when it will not be sent again."""
        with self._lock:
            self._last += 1
            self._open[self._last] = None
            return self._last

    def acknowledgement(self) -> tuple[int, list[int]]:
        """For the next message: all calls up to a number are over, and so are these later ones, which are told once."""
        with self._lock:
            up_to = self._up_to
            told, self._over = [number for number in self._over if number > up_to], []
            return up_to, told

    def over(self, number: int) -> None:
        """A call has its answer, or its answer is no longer wanted; may be called twice."""
        with self._lock:
            was_open = number in self._open
            self._open.pop(number, None)
            if was_open and number > self._up_to:
                self._over.append(number)

    @property
    def _up_to(self) -> int:
        return next(iter(self._open), self._last + 1) - 1


__all__ = ["Sequence"]
