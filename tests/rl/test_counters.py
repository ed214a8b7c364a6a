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
    assert all(len(copy.recent) == len(copy.recent_facts) == 100 for copy in copies)
    assert copies[0].steps < copies[-1].steps <= counters.steps


def test_a_copy_does_not_change_with_what_it_is_of() -> None:
    counters = Counters()
    counters.add(3, [EPISODE])
    copy = counters.copied()
    counters.add(4, [EPISODE])
    assert (copy.steps, copy.episodes, len(copy.recent)) == (3, 1, 1)
    assert copy.recent.maxlen == counters.recent.maxlen


def test_what_environments_say_of_episodes_is_averaged_over_those_that_say_it() -> None:
    counters = Counters()
    assert counters.facts() == {}
    counters.add(9, [EpisodeEnd(0, 1.0, 4, True, {"is_success": 1.0, "length": 7.0}), EpisodeEnd(0, 1.0, 5, True)])
    assert counters.facts() == {"is_success": 1.0, "length": 4.5}
    counters.add(600, [EpisodeEnd(0, 1.0, 6, True, {"is_success": 0.0})] * 99)
    assert counters.facts() == {"is_success": 0.0, "length": (5 + 99 * 6) / 100}, "of the last 100"
    again = Counters()
    again.load_state_dict(counters.state_dict())
    assert again == counters and again.recent_facts.maxlen == 100
    del (before := counters.state_dict())["recent_facts"]
    again = Counters()
    again.load_state_dict(before)  # of a version that did not keep them
    assert again.recent == counters.recent and again.facts() == {}
    assert repr(counters) == "Counters(steps=609, episodes=101, updates=0, rounds=0, stale_steps=0)"
