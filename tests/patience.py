"""How long a test waits for what has to come, and how it waits; imports only what costs nothing in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
"""Long enough beside eight busy processes, and shorter than the time of a test: who waits in vain says for what."""

PROGRAM_S = 1800.0
"""How long a program has that computes for a minute or two on an idle host; shorter than the time of a test of soak."""

T = TypeVar("T")


def wait_until(
    look: Callable[[], T], what: str = "", timeout_s: float = PATIENCE_S, *, wanted: Callable[[T], object] = bool
) -> T:
    """Look again and again until what is seen is wanted, and return it; the test fails when it never is."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while not wanted(seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what or look}; seen at last: {seen!r}")
        time.sleep(pause_s)
        pause_s = min(0.02, 1.2 * pause_s)  # a look may be one at all processes of the machine
    return seen
