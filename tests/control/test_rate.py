"""A rate is what was counted between two looks, however many look."""

from __future__ import annotations

from ropewalk.control.rate import Rate


def test_a_rate_is_of_the_time_since_the_last_look() -> None:
    rate = Rate(10.0)
    assert rate.at(12.0, 20) == 10.0
    assert rate.at(13.0, 23) == 3.0


def test_looks_half_a_second_apart_have_rates_of_their_own_and_before_that_there_is_none() -> None:
    rate = Rate(0.0)
    assert [rate.at(0.25, 5), rate.at(0.5, 10), rate.at(1.0, 11)] == [0.0, 20.0, 2.0]


def test_a_second_look_at_once_gets_the_same_rate_and_does_not_spoil_the_next() -> None:
    rate = Rate(0.0)
    assert rate.at(1.0, 10) == rate.at(1.1, 10) == 10.0
    assert rate.at(2.0, 12) == 2.0


def test_a_count_that_begins_anew_has_no_negative_rate() -> None:
    rate = Rate(0.0)
    rate.at(1.0, 10)
    assert rate.at(2.0, 3) == 0.0
