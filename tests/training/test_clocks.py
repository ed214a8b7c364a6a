from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.training.clocks import measured_offset

#: How long a question, or its answer, is on its way.
WAY_NS = st.integers(0, 10**6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(WAY_NS, WAY_NS), min_size=1, max_size=9), st.integers(-(10**15), 10**15))
def test_the_offset_is_right_within_its_error_whatever_the_ways_take(ways: list[tuple[int, int]], ahead: int) -> None:
    now = 10**12
    left = iter(ways)

    def clock() -> int:
        return now

    def ask() -> int:
        nonlocal now
        there, back = next(left)
        now += there
        asked = now + ahead
        now += back
        return asked

    found = measured_offset(ask, rounds=len(ways), clock=clock)
    assert abs(found.offset_ns - -ahead) <= found.error_ns
    assert found.error_ns <= min(there + back for there, back in ways) // 2 + 1


def test_at_least_one_round_trip_is_needed() -> None:
    with pytest.raises(ValueError, match="at least 1 round trip"):
        measured_offset(int, rounds=0)


def test_clocks_of_one_host_agree() -> None:

    found = measured_offset(time.monotonic_ns)
    assert abs(found.offset_ns) <= found.error_ns < 10**7
