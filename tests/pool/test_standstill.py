"""Whether a pool stands still, by looks at moments that the test chooses."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.pool.standstill import AFTER_S, Standstill

WAITING = {"pool-1.0": 1.0, "pool-1.1": 2.0}


def told(changes: dict[str, Any], *, expected_s: float | None = None) -> list[float]:
    """What is told in looks every ten seconds, of which some differ: from `changes["at"]` on."""
    standstill = Standstill()
    found: list[float] = []
    for now in range(100, 400, 10):
        facts: dict[str, Any] = {"num_ended": 5, "num_waiting": 4, "cpu_s": WAITING, "expected_s": expected_s}
        if now >= changes.get("at", 1e9):
            facts |= {name: value for name, value in changes.items() if name != "at"}
        stood_s = standstill.look(float(now), **facts)
        if stood_s is not None:
            found.append(stood_s)
    return found


def test_a_pool_in_which_nothing_ends_and_nothing_can_begin_is_told_once() -> None:
    assert told({}) == [AFTER_S]


@pytest.mark.parametrize(
    "change",
    [{"num_ended": 6}, {"cpu_s": {"pool-1.0": 1.0, "pool-1.7": 2.0}}],
    ids=["a task ended", "another worker"],
)
def test_the_time_is_counted_from_the_last_change(change: dict[str, Any]) -> None:
    assert told({"at": 150} | change) == [AFTER_S]
    standstill = Standstill()
    facts: dict[str, Any] = {"num_ended": 5, "num_waiting": 4, "cpu_s": WAITING, "expected_s": None}
    assert standstill.look(100.0, **facts) is None
    assert standstill.look(100.0 + AFTER_S, **facts | change) is None
    assert standstill.look(100.0 + 2 * AFTER_S, **facts | change) == AFTER_S


@pytest.mark.parametrize("fact", [{"num_waiting": 0}, {"cpu_s": {}}], ids=["nothing waits", "an idle worker"])
def test_where_nothing_waits_or_a_worker_is_free_nothing_is_told(fact: dict[str, Any]) -> None:
    assert told({"at": 0} | fact) == []


def test_workers_that_compute_do_not_wait() -> None:
    standstill = Standstill()
    for now in range(100, 400, 10):
        cpu_s = {"pool-1.0": 1.0, "pool-1.1": now * 0.5}
        assert standstill.look(float(now), num_ended=5, num_waiting=4, cpu_s=cpu_s, expected_s=None) is None


@pytest.mark.parametrize(("share", "is_told"), [(0.019, True), (0.021, False)])
def test_a_worker_waits_that_uses_less_than_a_fiftieth_of_a_cpu_between_two_looks(share: float, is_told: bool) -> None:
    standstill = Standstill()
    said: list[float | None] = []
    for look in range(5):
        # Both have computed for a long time before: what counts is what they have used since the last look.
        cpu_s = dict.fromkeys(WAITING, 1000.0 + share * 20.0 * look)
        said.append(standstill.look(100.0 + 20.0 * look, num_ended=5, num_waiting=4, cpu_s=cpu_s, expected_s=None))
    assert said == [None, None, None, AFTER_S if is_told else None, None]


def test_tasks_that_always_take_long_are_given_longer() -> None:
    assert told({}, expected_s=50.0) == [150.0]
    assert told({}, expected_s=1000.0) == []
