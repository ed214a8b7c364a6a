"""Leases: silence, and whose silence it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.supervision.liveness import Lease, Liveness

ALIVE, SUSPECT, LOST = Liveness.ALIVE, Liveness.SUSPECT, Liveness.LOST


def test_silence_leads_from_alive_over_suspect_to_lost() -> None:
    lease = Lease(10, now=100)
    seen = [lease.state(100 + second) for second in range(12)]
    assert seen == [ALIVE] * 5 + [SUSPECT] * 5 + [LOST] * 2


def test_being_heard_renews_the_lease() -> None:
    lease = Lease(10, now=0)
    for second in range(0, 100, 4):
        assert lease.state(second) is ALIVE
        lease.heard(second)
    assert [lease.state(second) for second in (98, 102)] == [ALIVE, SUSPECT]
    lease.heard(103)
    assert lease.state(103) is ALIVE


def test_what_is_left_of_a_lease_is_counted_from_the_last_message() -> None:
    lease = Lease(10, now=0)
    assert lease.left_s(0) == 10
    assert lease.state(3) is ALIVE
    assert lease.left_s(4) == 6
    lease.heard(5)
    assert (lease.left_s(6), lease.left_s(100)) == (9, 0)


def test_lost_is_final() -> None:
    """Its work has been given to others: coming back as if nothing had happened would compute it twice."""
    lease = Lease(10, now=0)
    assert [lease.state(second) for second in (3, 6, 9, 12)] == [ALIVE, SUSPECT, SUSPECT, LOST]
    lease.heard(13)
    assert lease.state(13) is LOST


def test_an_observer_that_was_stopped_does_not_lose_the_others() -> None:
    lease = Lease(10, now=0)
    assert lease.state(3) is ALIVE
    assert lease.state(1003) is ALIVE  # stopped for 1000 s by SIGSTOP
    assert lease.silent_s(1003) == 3
    assert [lease.state(1003 + second) for second in (2, 4, 6, 8)] == [SUSPECT, SUSPECT, SUSPECT, LOST]


def test_an_observer_that_was_stopped_still_finds_the_ones_that_are_gone() -> None:
    lease = Lease(10, now=0)
    lease.state(100)
    assert [lease.state(100 + second) for second in (4, 8, 12)] == [ALIVE, SUSPECT, LOST]


def test_messages_that_waited_while_the_observer_was_stopped_count_from_now() -> None:
    lease = Lease(10, now=0)
    lease.heard(1000)
    assert lease.silent_s(1000) == 0
    assert lease.state(1004) is ALIVE


def test_times_that_arrive_out_of_order_do_no_harm() -> None:
    lease = Lease(10, now=0)
    lease.heard(4)
    lease.heard(2)
    assert lease.silent_s(4) == 0
    assert lease.state(3) is ALIVE


def test_half_of_a_lease_is_what_makes_suspect_and_what_an_observer_may_miss() -> None:
    lease = Lease(0.5, now=0)
    assert [lease.state(now) for now in (0.2, 0.24, 0.25, 0.45, 0.5)] == [ALIVE, ALIVE, SUSPECT, SUSPECT, LOST]
    at_times, too_seldom = Lease(5, now=0), Lease(5, now=0)
    at_times.state(2.5)
    assert at_times.silent_s(2.5) == 2.5, "whoever looks every half lease sees all of the silence"
    too_seldom.state(2.6)
    assert too_seldom.silent_s(2.6) == 0


def test_somebody_heard_later_was_not_silent_before() -> None:
    lease = Lease(10, now=0)
    lease.heard(4)
    assert lease.silent_s(3) == 0


@pytest.mark.parametrize("lease_s", [0, -1, float("nan"), float("inf")])
def test_a_lease_that_never_or_always_ends_is_refused(lease_s: float) -> None:
    with pytest.raises(ValueError, match="lease_s"):
        Lease(lease_s, now=0)


@given(st.lists(st.floats(0, 4.9), max_size=60))
def test_somebody_heard_at_every_look_is_never_suspect(gaps: list[float]) -> None:
    lease, now = Lease(10, now=0), 0.0
    for gap in gaps:
        now += gap
        assert lease.state(now) is ALIVE
        lease.heard(now)


@given(st.lists(st.floats(0, 1000), max_size=60))
def test_nobody_is_lost_before_a_lease_of_looking(gaps: list[float]) -> None:
    lease, now, looked_s = Lease(10, now=0), 0.0, 0.0
    for gap in gaps:
        now += gap
        looked_s += gap if gap <= 5 else 0
        if lease.state(now) is LOST:
            assert looked_s >= 10 - 1e-6


def test_somebody_heard_after_a_stop_has_one_lease_from_then_and_no_more() -> None:
    lease = Lease(10.0, now=0.0)
    lease.heard(100.0)  # the observer was stopped; what waited is read before it looks
    assert [lease.state(float(now)) for now in range(101, 111)][-2:] == [Liveness.SUSPECT, Liveness.LOST]
