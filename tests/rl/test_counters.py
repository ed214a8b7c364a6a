"""Counts of an experiment, which a learner's threads add to while others ask for them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator

import pytest

from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.counters import Counters

EPISODE = EpisodeEnd(0, 1.0, 1, True, {})


@pytest.fixture
def eager_switching() -> Generator[None]:
    """Threads take turns after each few instructions, so that a race shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_counters_are_copied_while_another_thread_counts() -> None:
    counters, over = Counters(), threading.Event()
    counters.add(100, [EPISODE] * 100)

    def count() -> None:
        while not over.is_set():
            counters.add(1, [EPISODE])

    counting = threading.Thread(target=count)
    counting.start()
    try:
        copies = [counters.copied() for _ in range(5_000)]
    finally:
        over.set()
        counting.join()
    assert all(len(copy.recent) == 100 for copy in copies)
    assert copies[0].steps < copies[-1].steps <= counters.steps


def test_a_copy_does_not_change_with_what_it_is_of() -> None:
    counters = Counters()
    counters.add(3, [EPISODE])
    copy = counters.copied()
    counters.add(4, [EPISODE])
    assert (copy.steps, copy.episodes, len(copy.recent)) == (3, 1, 1)
    assert copy.recent.maxlen == counters.recent.maxlen
