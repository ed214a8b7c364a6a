"""`RegularLook`: looks at something on a loop, again and again, for as long as there is something to look at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ropewalk.transport.loop import Loop


class RegularLook:
    """Takes looks on a loop, under the lock of what they look at.

    Args:
        loop: looks are taken on its thread.
        lock: held by the caller of `begin`, and taken for each look.
        delay_s: seconds from `begin` to the first look.
        look: looks; returns the seconds until the next look, or None if there is nothing to look at any more.
    """

    def __init__(
        self, loop: Loop, lock: AbstractContextManager[object], delay_s: float, look: Callable[[], float | None]
    ) -> None:
        self._loop = loop
        self._lock = lock
        self._delay_s = delay_s
        self._look = look
        self._is_on = False

    def begin(self) -> None:
        """Look from now on; from any thread."""
        if not self._is_on:
            self._is_on = True
            self._loop.call_soon(lambda: self._loop.call_later(self._delay_s, self._take))

    def _take(self) -> None:
        with self._lock:
            self._is_on = False  # so that an error in a look does not end all later ones
            delay_s = self._look()
            self._is_on = delay_s is not None
        if delay_s is not None:
            self._loop.call_later(delay_s, self._take)


__all__ = ["RegularLook"]
