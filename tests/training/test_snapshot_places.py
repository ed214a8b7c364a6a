"""Where snapshots of a cut lie after deaths, and whether they are enough."""

from __future__ import annotations

from ropewalk.pipeline.plans import Plan, Stage, Worker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.snapshot_places import missing_groups, one_per_group, places_of

CUT, LATER = Cut(0, 8, (0, 0)), Cut(0, 16, (0, 0))
FIRST, SECOND, THIRD = Worker(0, 0), Worker(1, 0), Worker(1, 1)
#: One replica, and two.
PLAN = Plan((Stage(0, ("a",), (0,)), Stage(1, ("b",), (1, 2))), (), (), "pipedream", 4)


def test_a_snapshot_at_the_seat_of_its_worker_is_taken_there() -> None:
    kept = {0: [(3, FIRST, CUT), (3, SECOND, CUT)], 1: [(3, SECOND, CUT), (3, FIRST, CUT)]}
    assert places_of(kept, {3}, CUT, {FIRST: 0, SECOND: 1}) == {FIRST: 0, SECOND: 1}
    assert places_of(dict(reversed(kept.items())), {3}, CUT, {FIRST: 0, SECOND: 1}) == {FIRST: 0, SECOND: 1}


def test_a_snapshot_of_a_lost_worker_is_taken_from_its_keeper() -> None:
    kept = {1: [(3, SECOND, CUT), (3, FIRST, CUT)]}
    assert places_of(kept, {3}, CUT, {SECOND: 1}) == {FIRST: 1, SECOND: 1}


def test_other_cuts_and_epochs_are_none_of_this_one() -> None:
    kept = {0: [(2, FIRST, CUT), (3, FIRST, LATER)], 1: [(4, SECOND, CUT)]}
    assert places_of(kept, {3}, CUT, {}) == {}
    assert places_of(kept, {3, 4}, CUT, {}) == {SECOND: 1}


def test_for_another_plan_one_replica_of_each_group_is_enough() -> None:
    assert one_per_group({THIRD: 2, SECOND: 1, FIRST: 0}) == {FIRST: 0, SECOND: 1}
    assert one_per_group({THIRD: 2, FIRST: 0}) == {FIRST: 0, THIRD: 2}


def test_the_same_plan_needs_the_snapshots_of_all_replicas_and_another_one_those_of_one() -> None:
    assert missing_groups(PLAN, {FIRST: 0, SECOND: 1, THIRD: 2}, same_plan=True) == []
    assert missing_groups(PLAN, {FIRST: 0, THIRD: 2}, same_plan=True) == [1]
    assert missing_groups(PLAN, {FIRST: 0, THIRD: 2}, same_plan=False) == []
    assert missing_groups(PLAN, {THIRD: 2}, same_plan=False) == [0]
    assert missing_groups(PLAN, {}, same_plan=True) == [0, 1]
