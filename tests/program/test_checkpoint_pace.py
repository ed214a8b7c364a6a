"""When the state of a service is saved next."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.program.checkpoint_pace import CheckpointPace


def test_by_default_nothing_is_due_while_nothing_changes() -> None:
    pace = CheckpointPace(None, 0.0)
    assert pace.next_due is None and not pace.is_due(1e9)
    pace.changed()
    assert pace.next_due == 1.0 and not pace.is_due(0.9) and pace.is_due(1.0)
    pace.begun(1.0)
    assert pace.next_due is None
    pace.ended(1.01)
    assert pace.next_due is None and not pace.is_due(1e9)
    pace.changed()
    assert pace.next_due == 2.01, "a second later, as it took less than a twentieth of that"


def test_a_call_while_a_checkpoint_is_written_asks_for_another_one() -> None:
    pace = CheckpointPace(5.0, 0.0)
    pace.changed()
    pace.begun(5.0)
    pace.changed()
    assert pace.next_due is None
    pace.ended(6.0)
    assert pace.next_due == 10.0


def test_who_gives_an_interval_may_know_of_changes_that_nobody_tells() -> None:
    # A learner that was called by nobody was never saved, whatever its interval was.
    pace = CheckpointPace(5.0, 0.0)
    assert pace.next_due == 5.0 and not pace.is_due(4.9) and pace.is_due(5.0)
    pace.begun(5.0)
    pace.ended(6.0)
    assert pace.next_due == 10.0


def test_what_could_not_be_written_is_tried_again() -> None:
    pace = CheckpointPace(None, 0.0)
    pace.changed()
    pace.begun(1.0)
    pace.ended(1.5, written=False)
    assert pace.next_due == 1.5 + 10.0


@given(costs=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=30))
def test_by_default_saving_takes_a_twentieth_of_the_time_at_most(costs: list[float]) -> None:
    pace, now, saving_s = CheckpointPace(None, 0.0), 0.0, 0.0
    for cost in costs:
        pace.changed()
        assert pace.next_due is not None and pace.next_due - now >= 1.0 - 1e-9
        now = pace.next_due
        pace.begun(now)
        now += cost
        saving_s += cost
        pace.ended(now)
    pace.changed()
    assert pace.next_due is not None and saving_s <= 0.05 * pace.next_due + 1e-9


@pytest.mark.parametrize("wrong", [0, -1, math.nan, "5"])
def test_an_interval_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="checkpoint_s must be a number of seconds above 0, or None, not"):
        CheckpointPace(wrong, 0.0)


def test_an_interval_may_be_shorter_than_a_second() -> None:
    assert CheckpointPace(0.5, 0.0).next_due == 0.5


def test_an_endless_interval_means_never() -> None:
    pace = CheckpointPace(math.inf, 0.0)
    pace.changed()
    assert pace.next_due is None and not pace.is_due(1e9)
