"""How long a thread looks for what it waits for before it sleeps: to sleep and be woken costs more than a short look.

    wait ─▶ look ─ it has come ─▶ no sleep
              └ in vain ─▶ sleep ─ a short one ─▶ the next look is long      else: short, or none

A long look takes about as long as it takes both ends of a link to fall asleep and be woken, so a wait takes at most
twice as long as if it had been known whether to sleep (Karlin et al., "Empirical Studies of Competitive Spinning for a
Shared-Memory Multiprocessor", SOSP 1991). No look is long where threads wait for cores: it would keep one from running.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TypeVar

from ropewalk.transport import kernel

LONG_LOOK_S = 150e-6
"""Seconds for which an end of a link looks: until the other end is woken and has answered, but for long calls."""
SHORT_SLEEP_S = 200e-6
"""Seconds by which both ends can have been woken."""
_MOST_PATIENCE = 64
"""Maximum number of short sleeps after which a look is long again."""
_FORGOTTEN = 8
"""How many short sleeps a long one outweighs."""
_CHECK_S = 0.02
"""Interval in seconds at which it is checked whether threads wait for cores."""
_NUM_CORES = os.sysconf("SC_NPROCESSORS_ONLN")

Found = TypeVar("Found")


class Looking:
    """Decides for the waits of one process for one thing; by default for bytes of a link.

    Args:
        short_s: seconds that a short look takes; 0 for none.
        long_s: seconds that a long look takes.
        short_sleep_s: the longest sleep, in seconds, that a long look would have saved.
        is_crowded: whether threads wait for cores; asked before each long look.
        clock: as `time.monotonic`.
    """

    def __init__(
        self,
        short_s: float = 0.0,
        long_s: float = LONG_LOOK_S,
        short_sleep_s: float = SHORT_SLEEP_S,
        is_crowded: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._short_s, self._long_s, self._short_sleep_s = short_s, long_s, short_sleep_s
        self._is_crowded = is_crowded or Crowding().is_crowded
        self._clock = clock
        self._num_short = 0
        """The number of short sleeps since a long look was in vain, less those that long ones outweigh."""
        self._patience = 1
        """After how many of them a look is long."""
        self.pays: bool = short_s > 0
        """Whether `look` may look at all before the next sleep. To call it in vain is much in a cold cache."""

    def poll(
        self, poll: Callable[[float | None], list[tuple[int, int]]], timeout: float | None
    ) -> list[tuple[int, int]]:
        """Look before `poll(timeout)`, of a `select.poll` or `select.epoll`, if that pays; return the events."""
        if timeout == 0:
            return poll(0)
        if self.pays and (events := self.look(functools.partial(poll, 0))):
            return events
        begun = self._clock()
        events = poll(timeout)
        self.slept(self._clock() - begun)
        return events

    def look(self, found: Callable[[], Found]) -> Found | None:
        """Call `found` until it returns something true, and return that; None when the look is over."""
        look_s = self._next_s()
        if not look_s:
            return None
        due = self._clock() + look_s
        if what := found():  # it would not have slept either, which says nothing about looks
            return what
        while not (what := found()):
            if self._clock() >= due:
                if look_s == self._long_s:
                    self._postpone()
                return None
        if look_s == self._long_s:
            self._patience = 1
        return what

    def slept(self, seconds: float) -> None:
        """Note how long a sleep was."""
        self._num_short = (
            self._num_short + 1 if seconds <= self._short_sleep_s else max(self._num_short - _FORGOTTEN, 0)
        )
        self.pays = self._num_short >= self._patience or self._short_s > 0

    def _next_s(self) -> float:
        """How many seconds the next look takes at most."""
        if self._num_short < self._patience:
            return self._short_s
        if self._is_crowded():  # which is not asked again before each sleep
            self._postpone()
            return self._short_s
        return self._long_s

    def _postpone(self) -> None:
        """Look for long again only after 2, 4, 8, ... short sleeps.

        Long looks that are in vain although sleeps are short say that the other side needs this very core. Where
        threads wait for cores, none is made.
        """
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._num_short = 0
        self.pays = self._short_s > 0


class Crowding:
    """Tells whether more threads of this host want to run than it has cores.

    Args:
        num_runnable: as `kernel.num_runnable`.
        num_cores: of the host.
        clock: as `time.monotonic`.
    """

    def __init__(
        self,
        num_runnable: Callable[[], int | None] = kernel.num_runnable,
        num_cores: int = _NUM_CORES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_runnable, self._num_cores, self._clock = num_runnable, num_cores, clock
        self._due = float("-inf")
        self._is_crowded: bool

    def is_crowded(self) -> bool:
        """Whether it was so at the last check, which is `_CHECK_S` old at most; True where it is not known."""
        now = self._clock()
        if now >= self._due:
            num = self._num_runnable()
            self._is_crowded = num is None or num > self._num_cores
            self._due = now + _CHECK_S  # last: Ctrl-C may come at any moment
        return self._is_crowded


__all__ = ["LONG_LOOK_S", "SHORT_SLEEP_S", "Crowding", "Looking"]
