"""Snapshots take the share of the time that they may take, whatever a step and a snapshot cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.training.snapshot_pace import SnapshotPace


def run(
    pace: SnapshotPace, num: int, *, step_s: float, snapshot_s: float, size_bytes: int = 1, between: int = 1
) -> list[int]:
    """Train `num` steps; gives those behind which snapshots were taken, each whole at the next step."""
    found: list[int] = []
    for number in range(num):
        if found and found[-1] == number - 1:
            pace.whole(snapshot_s)
        if pace.admitted(size_bytes, can_cut=(number + 1) % between == 0):
            found.append(number)
        pace.step_took(step_s)
    return found


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-4, 10), st.floats(1e-5, 10))
def test_snapshots_cost_at_most_their_share_and_come_as_often_as_they_may(step_s: float, snapshot_s: float) -> None:
    pace = SnapshotPace(share=0.03)
    run(pace, 10, step_s=step_s, snapshot_s=snapshot_s)
    assert pace.cost is not None
    assert pace.cost <= 0.03 + 1e-9
    assert pace.every == 1 or snapshot_s / ((pace.every - 1) * step_s) > 0.03 - 1e-9


def test_the_first_comes_soon_and_the_others_at_the_pace_that_it_allows() -> None:
    pace = SnapshotPace()
    assert run(pace, 60, step_s=0.1, snapshot_s=0.04) == [3, 17, 31, 45, 59]
    assert pace.every == 14
    assert pace.cost == pytest.approx(0.04 / 1.4)


def test_what_the_first_one_cost_is_forgotten_when_a_second_is_known() -> None:
    pace = SnapshotPace()
    run(pace, 4, step_s=0.1, snapshot_s=0)
    pace.whole(0.9)
    assert pace.every == 300
    for _ in range(300):
        pace.admitted(1, can_cut=True)
    pace.whole(0.01)
    assert pace.every == 4


def test_one_slow_step_does_not_change_the_pace() -> None:
    pace = SnapshotPace()
    run(pace, 30, step_s=0.1, snapshot_s=0.04)
    before = pace.every
    pace.step_took(60.0)
    assert pace.every == before


def test_steps_that_are_slower_while_a_snapshot_is_sent_are_part_of_its_cost() -> None:
    """Only the copying counted: where no core was free, snapshots took 14 % of the time, and the report said 3 %."""
    pace = SnapshotPace()
    run(pace, 4, step_s=0.1, snapshot_s=0.003)
    for _ in range(5):
        for slowed in (0.11, 0.13, 0.12):
            pace.step_took(slowed)
        pace.whole(0.003)
        for _ in range(pace.every):
            pace.step_took(0.1)
            pace.admitted(1, can_cut=True)
    assert pace.every == 20, "0.06 s of 20 steps of 0.1 s"
    assert pace.cost == pytest.approx(0.03)


def test_a_step_that_hangs_while_a_snapshot_is_sent_counts_as_one_step_more() -> None:
    pace = SnapshotPace()
    run(pace, 4, step_s=0.1, snapshot_s=0.003)
    pace.step_took(60.0)
    pace.whole(0.003)
    assert pace.every == 34, "0.1 s, and not a minute"
    pace.admitted(1, can_cut=True)
    pace.restarted()
    pace.step_took(60.0)
    pace.whole(0.003)
    assert pace.every == 1, "of a step that was slow before the restart nothing is left"


def test_none_is_begun_before_the_last_is_whole() -> None:
    pace = SnapshotPace(2)
    assert [pace.admitted(1, can_cut=True) for _ in range(6)] == [False, True, False, False, False, False]
    pace.whole(0.1)
    assert pace.admitted(1, can_cut=True), "it is overdue"


def test_after_a_restart_it_counts_anew() -> None:
    pace = SnapshotPace(2)
    assert [pace.admitted(1, can_cut=True) for _ in range(3)] == [False, True, False]
    pace.restarted()
    assert [pace.admitted(1, can_cut=True) for _ in range(2)] == [False, True]


def test_snapshots_wait_for_a_step_that_ends_a_round() -> None:
    assert run(SnapshotPace(2), 14, step_s=0.1, snapshot_s=0.01, between=3) == [2, 5, 8, 11]


def test_what_is_retained_stays_below_its_bound() -> None:
    pace = SnapshotPace(most_retained_bytes=1000)
    run(pace, 10, step_s=0.1, snapshot_s=1.0, size_bytes=50)
    assert pace.every == 10
    assert pace.cost is not None
    assert pace.cost > 0.03, "the report shows that it is more than was wanted"
    huge = SnapshotPace(most_retained_bytes=10)
    run(huge, 10, step_s=0.1, snapshot_s=1.0, size_bytes=50)
    assert huge.every == 1


def test_a_pace_may_be_given() -> None:
    pace = SnapshotPace(5)
    assert pace.cost is None
    assert run(pace, 20, step_s=0.1, snapshot_s=5.0) == [4, 9, 14, 19]
    for every, share, message in ((0, 0.03, "every 1 or more steps"), ("auto", 3, "share of the time above 0 and up")):
        with pytest.raises(ValueError, match=message):
            SnapshotPace(every, share=share)  # pyright: ignore[reportArgumentType]
