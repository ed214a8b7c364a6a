"""Stopping ASHA stops a trial at a rung where it is not among the best one in eta of those seen there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers import FINISHED, GO_ON, STOP, StartTrial, StoppingASHA
from ropewalk.testing.simulated_search import SchedulerCall
from tests.search.schedulers.orders import in_many_orders, recorded_search


class ReferenceStopping:
    """The definition, over lists: at each rung, the scores seen there."""

    def __init__(self, budgets: list[float], eta: int) -> None:
        self.budgets, self.eta = budgets, eta
        self.seen: dict[float, list[tuple[float, int]]] = {budget: [] for budget in budgets}
        self.left = dict[int, list[float]]()
        self.last = dict[int, float]()

    def expected(self, call: SchedulerCall) -> object:
        match call.method, call.arguments:
            case "started", (trial, _):
                self.left[trial], self.last[trial] = list(self.budgets), -math.inf
            case "reported", (trial, step, score):
                self.last[trial] = score
                reached = [budget for budget in self.left[trial] if budget <= step]
                self.left[trial] = [budget for budget in self.left[trial] if budget > step]
                is_good = not reached or self.is_good(reached[-1], trial, score)
                if not is_good or step >= self.budgets[-1]:
                    self.left[trial] = []
                    return STOP
                return GO_ON
            case ("failed" | "ended") as how, (trial,) if self.left[trial]:
                score = -math.inf if how == "failed" else self.last[trial]
                self.seen[self.left[trial][0]].append((score, trial))
            case _:
                pass
        return call.answer

    def is_good(self, budget: float, trial: int, score: float) -> bool:
        self.seen[budget].append((score, trial))
        better = [1 for other, number in self.seen[budget] if other > score or (other == score and number < trial)]
        return len(better) < max(1, len(self.seen[budget]) // self.eta)


@in_many_orders
def test_the_same_trials_are_stopped_as_by_the_definition(seed: int, places: int) -> None:
    R, eta, s = ((27, 3, 0), (16, 4, 0), (16, 2, 1))[seed % 3]
    search = recorded_search(
        StoppingASHA(R=R, eta=eta, s=s),
        seed,
        places,
        steps=range(1 + seed % 2, R + 1, 2),
        failure_rate=0.01 * (seed % 2),
    )
    reference = ReferenceStopping([eta**k for k in range(s, 6) if eta**k <= R], eta)
    for call in search.calls:
        assert call.answer == reference.expected(call), call


def make(num: int, **arguments: Any) -> StoppingASHA:
    scheduler = StoppingASHA(**{"R": 4, "eta": 2, **arguments})
    for trial in range(num):
        assert scheduler.next() == StartTrial(None, 0)
        scheduler.started(trial, StartTrial(None, 0))
    return scheduler


def test_the_first_goes_on_and_a_later_one_if_it_is_in_the_best_half() -> None:
    scheduler = make(5)
    assert scheduler.reported(0, 0.5, 0.0) is GO_ON, "no rung yet"
    verdicts = [scheduler.reported(trial, 1, score) for trial, score in enumerate((0.1, 0.5, 0.3, 0.2, 0.2))]
    assert verdicts == [GO_ON, GO_ON, STOP, STOP, STOP]
    assert scheduler.reported(0, 1.5, 0.0) is GO_ON, "between two rungs"


def test_one_in_four_goes_on_by_default() -> None:
    scheduler = StoppingASHA(R=64)
    assert [rung.budget for rung in scheduler.brackets[0].rungs] == [1, 4, 16, 64]
    assert len(scheduler.brackets) == 1
    for trial in range(12):
        scheduler.started(trial, StartTrial(None, 0))
    verdicts = [
        scheduler.reported(trial, 1, score) for trial, score in enumerate([9, 8, 8, 8, 8, 8, 8, 10, 8, 8, 8, 8.5])
    ]
    assert [trial for trial, verdict in enumerate(verdicts) if verdict is GO_ON] == [0, 7, 11]


def test_of_equal_scores_the_lower_number_is_better() -> None:
    scheduler = make(3)
    assert [scheduler.reported(trial, 1, 0.5) for trial in (1, 2, 0)] == [GO_ON, STOP, GO_ON]


def test_the_last_step_stops_every_trial() -> None:
    scheduler = make(1)
    assert [scheduler.reported(0, step, 1) for step in (1, 2, 3, 4)] == [GO_ON, GO_ON, GO_ON, STOP]
    scheduler = make(1, R=6)
    assert [scheduler.reported(0, step, 1) for step in (4, 5, 6)] == [GO_ON, GO_ON, STOP], "rungs at 1, 2 and 4"


def test_a_trial_ends_by_itself_at_R() -> None:
    assert StoppingASHA(R=100).max_steps == 100


def test_a_report_after_several_rungs_counts_in_the_last_of_them() -> None:
    scheduler = make(2)
    scheduler.reported(0, 3, 1)
    assert [len(rung.ranking) for rung in scheduler.brackets[0].rungs] == [0, 1, 0]
    assert scheduler.reported(1, 1, 0) is GO_ON


def test_a_stopped_trial_enters_no_other_rung_and_a_failed_one_the_next() -> None:
    scheduler = make(3)
    scheduler.reported(0, 1, 1)
    assert scheduler.reported(1, 1, 0) is STOP
    scheduler.ended(1)
    scheduler.failed(0)
    scheduler.failed(2)
    rungs = scheduler.brackets[0].rungs
    assert [rung.ranking for rung in rungs] == [[(-1, 0), (0, 1), (math.inf, 2)], [(math.inf, 0)], []]


def test_a_trial_that_ends_by_itself_counts_with_its_score_in_the_next_rung() -> None:
    scheduler = make(2)
    scheduler.reported(0, 0.5, 0.7)
    scheduler.ended(0)
    assert scheduler.reported(1, 1, 0.6) is STOP, "the second of two"


def test_it_starts_trials_until_it_is_told_that_there_are_no_more() -> None:
    scheduler = make(2)
    scheduler.exhausted()
    assert scheduler.next() is FINISHED
    assert not scheduler.needs_checkpoints


def test_several_brackets_share_trials() -> None:
    scheduler = StoppingASHA(R=4, eta=2, max_brackets=2)
    taken: list[int] = []
    for trial in range(10):
        start = scheduler.next()
        assert isinstance(start, StartTrial) and start.budget is None
        taken.append(start.bracket)
        scheduler.started(trial, start)
    assert taken.count(0) == 6, "shares 4/3 and 2/2"
    assert [rung.budget for rung in scheduler.brackets[1].rungs] == [2, 4]


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(SearchInvalid, match="eta must be"):
        StoppingASHA(R=4, eta=1)
