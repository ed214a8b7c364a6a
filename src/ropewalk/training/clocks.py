"""Clocks of several hosts: how far a worker's `time.monotonic_ns()` is from ours, by round trips.

    ours     sent ─────────────── received        the answer was read somewhere between:
    theirs          └─ asked ─┘                   offset = (sent + received) / 2 - asked

The quickest of several round trips says most: the error is at most half of it (Cristian,
"Probabilistic clock synchronization", 1989). Processes of one host share the clock, and
need none of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class ClockOffset(NamedTuple):
    """What to add to times of another clock to have them by ours."""

    offset_ns: int
    #: It is wrong by at most this.
    error_ns: int


def measured_offset(
    ask: Callable[[], int], rounds: int = 9, clock: Callable[[], int] = time.monotonic_ns
) -> ClockOffset:
    """Ask for another clock's time, and compare.

    Args:
        ask: calls the other process, which answers with its `time.monotonic_ns()`.
        rounds: how often; the quickest counts.
        clock: ours.
    """
    if rounds < 1:
        raise ValueError(f"it takes at least 1 round trip to compare clocks, not {rounds}")
    best: ClockOffset | None = None
    for _ in range(rounds):
        sent = clock()
        asked = ask()
        received = clock()
        found = ClockOffset((sent + received) // 2 - asked, (received - sent + 1) // 2)
        if best is None or found.error_ns < best.error_ns:
            best = found
    assert best is not None
    return best
