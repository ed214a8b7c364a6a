"""Median stopping stops a trial that is worse than the median of the running means of others."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers import FINISHED, GO_ON, STOP, MedianStopping, StartTrial
from tests.search.schedulers.orders import in_many_orders, recorded_search


def should_stop(reports: dict[int, dict[float, float]], failed: set[int], trial: int, t: float, grace: float) -> bool:
    """Section 3.2.2 of Vizier's paper, over all reports until now."""
    means: list[float] = []
    for other, scores in reports.items():
        until = [score for step, score in scores.items() if step <= t]
        if other != trial and any(step >= t for step in scores):
            means += [sum(until) / len(until)] if until else []
        elif other != trial and other in failed:
            means.append(-math.inf)
    best = max(reports[trial].values())
    return t >= grace and len(means) >= 3 and best < statistics.median(means)


@in_many_orders
def test_the_same_trials_are_stopped_as_by_the_definition(seed: int, places: int) -> None:
    grace = seed % 4
    failure_rate = 0.02 * (seed % 2)
    search = recorded_search(
        MedianStopping(grace=grace), seed, places, steps=range(1, 10), num_trials=12, failure_rate=failure_rate
    )
    reports, failed = dict[int, dict[float, float]](), set[int]()
    for call in search.calls:
        if call.method == "started":
            reports[call.arguments[0]] = {}
        elif call.method == "failed":
            failed.add(call.arguments[0])
        elif call.method == "reported":
            trial, step, score = call.arguments
            reports[trial][step] = score
            # Sums are added in the same order, so that equal means are equal bit for bit.
            assert call.answer is (STOP if should_stop(reports, failed, trial, step, grace) else GO_ON)


def make(num: int, **arguments: Any) -> MedianStopping:
    scheduler = MedianStopping(**arguments)
    for trial in range(num):
        assert scheduler.next() == StartTrial(None)
        scheduler.started(trial, StartTrial(None))
    return scheduler


def test_the_best_score_is_compared_with_the_median_of_running_means() -> None:
    scheduler = make(4)
    for trial, scores in enumerate([(0.0, 1.0), (0.4, 0.4), (0.8, 0.8)]):
        for step, score in enumerate(scores, 1):
            assert scheduler.reported(trial, step, score) is GO_ON, "less than 3 others"
    assert scheduler.reported(3, 1, 0.4) is GO_ON, "not worse than the median of 0, 0.4 and 0.8"
    assert scheduler.reported(3, 2, 0.45) is STOP, "worse than the median of 0.5, 0.4 and 0.8"


def test_a_trial_that_was_good_before_goes_on() -> None:
    scheduler = make(4)
    for trial in range(3):
        for step in (1, 2):
            scheduler.reported(trial, step, 0.5)
    assert [scheduler.reported(3, step, score) for step, score in ((1, 0.6), (2, 0.1))] == [GO_ON, GO_ON]


def test_steps_before_grace_stop_none() -> None:
    scheduler = make(4)
    for trial in range(3):
        for step in (0.5, 1):
            scheduler.reported(trial, step, 1.0)
    assert [scheduler.reported(3, step, 0.0) for step in (0.5, 1)] == [GO_ON, STOP], "grace is 1 by default"
    for grace, verdicts in ((1, [STOP]), (2, [GO_ON, STOP]), (2.5, [GO_ON, GO_ON, STOP])):
        scheduler = make(4, grace=grace)
        for trial in range(3):
            for step in (1, 2, 3):
                scheduler.reported(trial, step, 1.0)
        assert [scheduler.reported(3, step, 0.0) for step in range(1, len(verdicts) + 1)] == verdicts


def test_only_others_that_have_got_to_the_step_count() -> None:
    scheduler = make(3, min_others=2)
    scheduler.reported(0, 1, 1.0)
    scheduler.reported(1, 2, 1.0)
    assert scheduler.reported(2, 2, 0.0) is GO_ON, "trial 0 has not got to step 2"
    scheduler.reported(0, 4, 1.0)
    assert scheduler.reported(2, 2.5, 0.0) is GO_ON, "trial 1 has not got to 2.5"
    scheduler.reported(1, 3, 1.0)
    assert scheduler.reported(2, 3, 0.0) is STOP


def test_a_trial_that_reports_less_often_counts_with_what_it_reported_before() -> None:
    scheduler = make(2, min_others=1)
    scheduler.reported(0, 1, 0.2)
    scheduler.reported(0, 5, 1.0)
    assert scheduler.reported(1, 3, 0.3) is GO_ON, "the mean until 3 is 0.2"
    scheduler = make(2, min_others=1)
    scheduler.reported(0, 5, 1.0)
    assert scheduler.reported(1, 3, 0.3) is GO_ON, "it has no mean before its first report"


def test_a_failed_trial_counts_as_the_worst_where_it_has_not_reported() -> None:
    scheduler = make(4)
    scheduler.reported(0, 1, 1.0)
    scheduler.failed(0)
    for trial in (1, 2):
        scheduler.reported(trial, 2, 0.5)
    assert scheduler.reported(3, 1, 0.7) is GO_ON, "one other has a mean at 1"
    assert scheduler.reported(3, 2, 0.2) is GO_ON, "its best is 0.7"
    scheduler = make(4)
    scheduler.failed(0)
    for trial, score in ((1, 0.5), (2, 0.4)):
        scheduler.reported(trial, 2, score)
    assert scheduler.reported(3, 2, 0.4) is GO_ON, "the median of -inf, 0.4 and 0.5"
    scheduler = make(4)
    scheduler.failed(0)
    for trial, score in ((1, 0.5), (2, 0.4)):
        scheduler.reported(trial, 2, score)
    assert scheduler.reported(3, 2, 0.3) is STOP


def test_what_an_ended_trial_reported_still_counts() -> None:
    scheduler = make(2, min_others=1)
    scheduler.reported(0, 1, 1.0)
    scheduler.ended(0)
    assert scheduler.reported(1, 1, 0.0) is STOP


def test_the_first_scores_may_be_negative() -> None:
    scheduler = make(2, min_others=1)
    scheduler.reported(0, 1, -3.0)
    assert scheduler.reported(1, 1, -2.0) is GO_ON


def test_it_finishes_when_it_is_told_that_there_are_no_more_trials() -> None:
    scheduler = make(1)
    scheduler.exhausted()
    assert scheduler.next() is FINISHED
    assert not scheduler.needs_checkpoints


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grace": -1}, "grace must be a number of steps of at least 0, not -1"),
        ({"grace": math.inf}, "grace must be a number of steps of at least 0, not inf"),
        ({"min_others": 0}, "min_others must be a whole number of at least 1, not 0"),
    ],
)
def test_arguments_out_of_range_are_named_with_their_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        MedianStopping(**arguments)
    assert make(1, grace=0).reported(0, 0, 0) is GO_ON


def test_a_trial_with_infinite_scores_of_both_signs_is_no_riddle_for_others() -> None:
    """The mean of its scores was NaN, among which a median is whatever comes out of the sorting."""
    scheduler = MedianStopping(min_others=3)
    for number, scores in enumerate([(2.0, 2.0), (math.inf, -math.inf), (3.0, 3.0)]):
        scheduler.started(number, StartTrial(None))
        for step, score in enumerate(scores, 1):
            scheduler.reported(number, step, score)
    for number, score, verdict in [(3, 1.9, STOP), (4, 2.1, GO_ON)]:
        scheduler.started(number, StartTrial(None))
        assert scheduler.reported(number, 2, score) is verdict
