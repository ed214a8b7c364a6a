"""How long a thread looks for what it waits for before it sleeps: to sleep and be woken costs more than a short look.

    wait ─▶ look ─ it has come ─▶ no sleep
              └ in vain ─▶ sleep ─ a short one ─▶ the next look is long      else: short, or none

A long look takes about as long as it takes to fall asleep and be woken, so a wait takes at most twice as long as if it
had been known whether to sleep (Karlin et al., "Empirical Studies of Competitive Spinning for a Shared-Memory
Multiprocessor", SOSP 1991). No look is long where threads wait for cores: it might keep the other side from running.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from ropewalk.transport import kernel

LONG_LOOK_S = 150e-6
"""Seconds for which an end of a link looks: until the other end is woken and has answered, but for long calls."""
SHORT_SLEEP_S = 200e-6
"""Seconds by which both ends can have been woken."""
_MOST_PATIENCE = 256
"""Maximum number of short sleeps after which a look is long again."""
_CHECK_S = 0.02
"""Interval in seconds at which a thread checks whether it waits for cores."""
_CROWDED = 0.1
"""The share of its time, running or ready to run, for which a thread waits for a core where there are too few."""

Found = TypeVar("Found")


class Looking:
    """Decides for the waits of one process for one thing.

    Args:
        short_s: seconds that a short look takes; 0 for none.
        long_s: seconds that a long look takes.
        short_sleep_s: the longest sleep, in seconds, that a long look would have saved.
        is_crowded: whether threads wait for cores; asked before each long look.
        clock: as `time.monotonic`.
    """

    def __init__(
        self,
        short_s: float,
        long_s: float,
        short_sleep_s: float,
        is_crowded: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._short_s, self._long_s, self._short_sleep_s = short_s, long_s, short_sleep_s
        self._is_crowded = is_crowded or Crowding().is_crowded
        self._clock = clock
        self._num_short = 0
        """The number of short sleeps since the last long one, or since a long look was in vain."""
        self._patience = 1
        """After how many of them a look is long."""

    def wait(self, found: Callable[[], Found], sleep: Callable[[], Found]) -> Found:
        """Look with `found`, and if nothing has come by then, `sleep`; return what came."""
        what = self.look(found)
        if not what:
            begun = self._clock()
            what = sleep()
            self.slept(self._clock() - begun)
        return what

    def look(self, found: Callable[[], Found]) -> Found | None:
        """Call `found` until it returns something true, and return that; None when the look is over."""
        look_s = self.next_s()
        if not look_s:
            return None
        due = self._clock() + look_s
        while not (what := found()):
            if self._clock() >= due:
                self.ended(look_s, in_vain=True)
                return None
        self.ended(look_s, in_vain=False)
        return what

    def next_s(self) -> float:
        """How many seconds the next look takes at most."""
        return self._long_s if self._num_short >= self._patience and not self._is_crowded() else self._short_s

    def ended(self, look_s: float, in_vain: bool) -> None:
        """Note what came of a look.

        Long looks that are in vain although sleeps are short say that the other side needs this very core: they are
        tried again after 2, 4, 8, ... short sleeps.
        """
        if look_s == self._long_s:
            self._patience = min(2 * self._patience, _MOST_PATIENCE) if in_vain else 1
            self._num_short = 0 if in_vain else self._num_short

    def slept(self, seconds: float) -> None:
        """Note how long a sleep was."""
        self._num_short = self._num_short + 1 if seconds <= self._short_sleep_s else 0


class Crowding:
    """Tells whether this thread often waits for a core, by what the kernel counts of it.

    Args:
        run_times: as `kernel.run_times`.
        clock: as `time.monotonic`.
    """

    def __init__(
        self,
        run_times: Callable[[], tuple[float, float] | None] = kernel.run_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_times, self._clock = run_times, clock
        self._due = float("-inf")
        self._last: tuple[int, float, float] | None = None
        """The thread that checked last, and its times then."""
        self._is_crowded = False

    def is_crowded(self) -> bool:
        """Whether it waited for more than a tenth of the time since the last check, where it also ran."""
        now = self._clock()
        if now >= self._due:
            self._due = now + _CHECK_S
            self._check()
        return self._is_crowded

    def _check(self) -> None:
        times = self._run_times()
        if times is None:  # nothing is known, so that no time is taken from others
            self._is_crowded = True
            return
        thread, last = get_ident(), self._last
        if last and last[0] == thread:
            ran_s, waited_s = times[0] - last[1], times[1] - last[2]
            self._is_crowded = waited_s > _CROWDED * (ran_s + waited_s)
        self._last = thread, *times


__all__ = ["LONG_LOOK_S", "SHORT_SLEEP_S", "Crowding", "Looking"]
