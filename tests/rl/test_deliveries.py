"""The age of blocks: what is counted, and what is too old."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.rl.deliveries import ActorFacts, Deliveries, lag_in_words
from ropewalk.rl.logs.terminal import line_of
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.variables import epoch_of, lag_metrics, numbered, version_lag


def block(run_id: str, sequence: int, version: int) -> Insertion:
    return Insertion(run_id, sequence, {}, {}, version=version)


def test_the_lag_over_lives_of_the_learner_is_one_of_updates() -> None:
    assert version_lag(numbered(0, 9), numbered(0, 4)) == 5
    assert version_lag(numbered(3, 9), numbered(1, 4)) == 5
    assert version_lag(numbered(3, 4), numbered(1, 9)) == 0, "of an update that was lost"
    assert epoch_of(numbered(3, 4)) == 3 and numbered(2, 0) > numbered(1, 10**9)
    versions = np.array([numbered(1, 4), numbered(2, 9)])
    assert lag_metrics(numbered(2, 10), versions) == {
        "policy_lag": 3.5,
        "policy_lag_min": 1.0,
        "policy_lag_max": 6.0,
    }


def test_blocks_are_stale_from_one_update_more_than_the_bound_on() -> None:
    bounded, unbounded = Deliveries(3), Deliveries(None)
    assert not bounded.is_stale(block("0#0", 0, 7), 10)
    assert bounded.is_stale(block("0#0", 0, 6), 10)
    assert not unbounded.is_stale(block("0#0", 0, 0), 10**9)


def test_facts_are_kept_for_each_group_over_its_lives() -> None:
    deliveries = Deliveries(3)
    deliveries.take(block("4#0", 0, 10), 10, stale=False)
    deliveries.take(block("4#0", 1, 2), 10, stale=True)
    deliveries.take(block("4#65536", 0, 9), 10, stale=False)
    facts = deliveries.actors[4]
    assert (facts.blocks, facts.stale, facts.lives, facts.lag, facts.lag_max) == (2, 1, 2, 1, 8)


def test_a_group_whose_blocks_are_all_refused_is_given_up() -> None:
    deliveries = Deliveries(None)
    assert not deliveries.has_refused("0#0")
    assert [deliveries.refuse(f"0#{life}") for life in range(3)] == [True] * 3
    assert deliveries.has_refused("0#5") and not deliveries.has_refused("1#0")
    for number in range(6):
        deliveries.take(block("0#3", number, 0), 0, stale=False)
    assert [deliveries.refuse(f"0#{life}") for life in range(4, 9)] == [True] * 4 + [False]
    assert deliveries.refuse("1#9") and deliveries.actors[0].refused == 8


@pytest.mark.parametrize(("num_finite", "is_given_up"), [(1, True), (2, False), (9, False)])
def test_a_group_is_given_up_if_more_than_a_third_of_its_blocks_are_refused(num_finite: int, is_given_up: bool) -> None:
    # Any finite block cleared it: one in which every second block was NaN wasted half of its time without end.
    deliveries = Deliveries(None)
    went_on: list[bool] = []
    for life in range(100):
        for number in range(num_finite):
            deliveries.take(block(f"0#{life}", number, 0), 0, stale=False)
        went_on.append(deliveries.refuse(f"0#{life}"))
    assert (False in went_on) == is_given_up and all(went_on[:4])


def test_what_is_lost_of_a_stream_is_counted_once() -> None:
    deliveries = Deliveries(None)
    deliveries.load_lost(10)
    for num_blocks in (1, 3, 2):
        deliveries.lose("0#0", num_blocks)
    deliveries.lose("1#0", 1)
    assert deliveries.lost_blocks == 14


def test_the_line_of_progress_names_the_actor_that_is_far_behind_and_only_then() -> None:
    def shown(*lags: int, stale: int = 0, refused: int = 0) -> str:
        return lag_in_words(
            {group: ActorFacts(lag=lag, stale=stale, refused=refused) for group, lag in enumerate(lags)}
        )

    assert [shown(), shown(30), shown(3, 4, 3), shown(3, 11, 3)] == ["", "", "", ""]
    assert shown(3, 3, 41, 4) == "lag 4 (group 2: 41)"
    assert shown(3, 2, stale=600) == "lag 3 (group 0: 3, 1,200 blocks dropped)"
    assert shown(3, 4, refused=30) == "60 blocks dropped that were not finite"
    assert shown(3, 41, 4, refused=1) == "lag 4 (group 1: 41)   3 blocks dropped that were not finite"
    row = {"steps": 50, "total_steps": 100, "lag": shown(0, 9, 1), "bound": "learner-bound: actors wait 9 %"}
    assert line_of("progress", row).endswith("lag 1 (group 1: 9)   learner-bound: actors wait 9 %")
