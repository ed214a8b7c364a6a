"""Clocks of several hosts: the offset of a worker's `time.monotonic_ns()` from ours, measured by round trips.

    ours     sent ─────────────── received        the answer was read somewhere between:
    theirs          └─ asked ─┘                   offset = (sent + received) / 2 - asked

The fastest of several round trips is the most precise: the error is at most half of it (Cristian,
"Probabilistic clock synchronization", 1989). Processes of one host share the clock, and
need no offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class ClockOffset(NamedTuple):
    """The offset to add to times of another clock to convert them to ours, in nanoseconds."""

    offset_ns: int
    error_ns: int
    """The largest possible error of the offset."""


def measured_offset(
    ask: Callable[[], int], rounds: int = 9, clock: Callable[[], int] = time.monotonic_ns
) -> ClockOffset:
    """Measure the offset of another clock.

    Args:
        ask: calls the other process, which answers with its `time.monotonic_ns()`.
        rounds: the number of calls; the fastest counts.
        clock: our clock, in nanoseconds.

    Returns:
        The offset, and the bound of its error.
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
