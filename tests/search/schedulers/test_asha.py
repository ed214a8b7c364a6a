"""ASHA promotes what algorithm 2 of its paper promotes, whatever happens in which order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers import ASHA, FINISHED, GO_ON, WAIT, PromoteTrial, StartTrial
from ropewalk.testing.simulated_search import SchedulerCall
from tests.search.schedulers.orders import in_many_orders, recorded_search


class PaperASHA:
    """Algorithm 2 of arXiv 1810.05934, as it is printed, with what a search tells it."""

    def __init__(self, r: float, R: float, eta: int, s: int) -> None:
        self.r, self.R, self.eta, self.s = r, R, eta, s
        self.top = math.floor(math.log(R / r, eta) + 1e-9) - s
        self.rungs: list[dict[int, float]] = [{} for _ in range(self.top + 1)]
        self.promoted: list[set[int]] = [set() for _ in range(self.top + 1)]
        self.gone: set[int] = set()
        self.training: dict[int, int] = {}
        self.loss: dict[int, float] = {}

    def budget(self, rung: int) -> float:
        return self.r * self.eta ** (self.s + rung)

    def top_k(self, rung: int, k: int) -> list[int]:
        losses = self.rungs[rung]
        return sorted(losses, key=lambda trial: (losses[trial], trial))[:k]

    def get_job(self) -> tuple[int | None, int]:
        """The trial and its rung; None for a new configuration."""
        for k in reversed(range(self.top)):
            candidates = self.top_k(k, len(self.rungs[k]) // self.eta)
            promotable = [t for t in candidates if t not in self.promoted[k] and t not in self.gone]
            if promotable:
                return promotable[0], k + 1
        return None, 0

    def hear(self, call: SchedulerCall) -> None:
        match call.method, call.arguments:
            case "started", (trial, _):
                self.training[trial], self.loss[trial] = 0, math.inf
            case "promoted", (promote,):
                rung = next(k for k in reversed(range(self.top)) if promote.trial in self.rungs[k])
                self.promoted[rung].add(promote.trial)
                self.training[promote.trial] = rung + 1
            case "reported", (trial, _, score):
                self.loss[trial] = -score
            case ("paused" | "ended" | "failed") as how, (trial, *_):
                if how != "paused":
                    self.gone.add(trial)
                if trial in self.training:
                    loss = math.inf if how == "failed" else self.loss[trial]
                    self.rungs[self.training.pop(trial)][trial] = loss
            case _:
                pass


def check_against_paper(paper: PaperASHA, calls: list[SchedulerCall]) -> None:
    is_exhausted = False
    for call in calls:
        if call.method == "next":
            trial, rung = paper.get_job()
            if trial is not None:
                assert call.answer == PromoteTrial(trial, paper.budget(rung))
            elif is_exhausted:
                assert call.answer is (WAIT if any(k < paper.top for k in paper.training.values()) else FINISHED)
            else:
                assert call.answer == StartTrial(paper.budget(0), 0)
        is_exhausted |= call.method == "exhausted"
        paper.hear(call)


@in_many_orders
def test_every_answer_is_that_of_the_paper(seed: int, places: int) -> None:
    R, eta, s = ((81, 3, 0), (64, 4, 0), (64, 2, 1))[seed % 3]
    unlucky = 0.02 * (seed % 2)
    steps = [eta**k for k in range(7) if eta**k <= R] + [R + 1]
    search = recorded_search(
        ASHA(R=R, eta=eta, s=s), seed, places, steps=steps, failure_rate=unlucky, removal_rate=unlucky
    )
    check_against_paper(PaperASHA(1, R, eta, s), search.calls)


def test_rung_k_has_budget_r_eta_to_the_s_plus_k() -> None:
    for r, R, eta, s, budgets in (
        (1, 81, 3, 0, [1, 3, 9, 27, 81]),
        (1, 256, 4, 1, [4, 16, 64, 256]),
        (2, 100, 4, 0, [2, 8, 32]),
        (0.1, 0.3, 3, 0, [0.1, 0.1 * 3]),
        (5, 5, 4, 0, [5]),
    ):
        scheduler = ASHA(r=r, R=R, eta=eta, s=s)
        assert [rung.budget for rung in scheduler.brackets[0].rungs] == budgets


def test_a_trial_ends_by_itself_at_the_last_rung() -> None:
    assert [ASHA(R=R, max_brackets=2).max_steps for R in (64, 100)] == [64, 64]
    search = recorded_search(ASHA(R=9, eta=3), 1, 3, steps=range(1, 20))
    assert max(trial.step for trial in search.trials) == 9


def test_one_in_eta_of_a_rung_goes_on_and_none_waits_for_the_others() -> None:
    scheduler = ASHA(R=16, eta=4)
    for trial in range(4):
        assert scheduler.next() == StartTrial(1, 0)
        scheduler.started(trial, StartTrial(1, 0))
    for trial, score in ((2, 0.5), (0, 0.7), (3, 0.1)):
        assert scheduler.reported(trial, 1, score) is GO_ON
        scheduler.paused(trial, 1)
        assert scheduler.next() == StartTrial(1, 0), "floor(n / 4) is 0"
    scheduler.reported(1, 1, 0.6)
    scheduler.paused(1, 1)
    assert scheduler.next() == PromoteTrial(0, 4)
    scheduler.promoted(PromoteTrial(0, 4))
    assert scheduler.next() == StartTrial(1, 0), "the only one of the best quarter is promoted already"
    assert [rung.num_promoted for rung in scheduler.brackets[0].rungs] == [1, 0, 0]


def run_to(scheduler: ASHA, trial: int, step: float, score: float) -> None:
    scheduler.reported(trial, step, score)
    scheduler.paused(trial, step)


def test_the_highest_rung_is_promoted_first() -> None:
    scheduler = ASHA(R=4, eta=2)
    for trial in range(6):
        scheduler.started(trial, StartTrial(1, 0))
    for trial in range(4):
        run_to(scheduler, trial, 1, -trial)
    for trial in range(2):
        assert scheduler.next() == PromoteTrial(trial, 2)
        scheduler.promoted(PromoteTrial(trial, 2))
    for trial in (4, 5):
        run_to(scheduler, trial, 1, 1)
    assert scheduler.next() == PromoteTrial(4, 2)
    run_to(scheduler, 0, 2, 0)
    run_to(scheduler, 1, 2, 5)
    assert scheduler.next() == PromoteTrial(1, 4)


def test_of_equal_scores_the_lower_number_is_better() -> None:
    scheduler = ASHA(R=2, eta=2)
    for trial in range(2):
        scheduler.started(trial, StartTrial(1, 0))
    for trial in (1, 0):
        run_to(scheduler, trial, 1, 0.5)
    assert scheduler.next() == PromoteTrial(0, 2)


def test_a_trial_that_fails_counts_as_the_worst_and_one_that_ends_with_its_score() -> None:
    scheduler = ASHA(R=2, eta=2)
    for trial in range(5):
        scheduler.started(trial, StartTrial(1, 0))
    scheduler.reported(0, 0.5, 0.9)
    scheduler.failed(0)
    run_to(scheduler, 1, 1, 0.1)
    assert scheduler.next() == PromoteTrial(1, 2), "the better one of two"
    scheduler.reported(2, 0.5, 0.8)
    scheduler.ended(2)
    scheduler.failed(3)
    assert scheduler.next() == PromoteTrial(1, 2), "the second of four; the first has ended"
    scheduler.failed(1)
    assert scheduler.next() == StartTrial(1, 0)


def test_a_trial_without_reports_is_the_worst() -> None:
    scheduler = ASHA(R=2, eta=2)
    for trial in range(2):
        scheduler.started(trial, StartTrial(1, 0))
    scheduler.paused(0, 1)
    run_to(scheduler, 1, 1, -1e9)
    assert scheduler.next() == PromoteTrial(1, 2)


def test_a_trial_whose_steps_are_larger_enters_the_last_rung_that_it_has_reached() -> None:
    scheduler = ASHA(R=8, eta=2)
    for trial in range(2):
        scheduler.started(trial, StartTrial(1, 0))
        run_to(scheduler, trial, 5, 0)
    assert [len(rung.ranking) for rung in scheduler.brackets[0].rungs] == [0, 0, 2, 0]
    assert scheduler.next() == PromoteTrial(0, 8)


def test_it_finishes_when_no_trial_can_be_promoted_any_more() -> None:
    scheduler = ASHA(R=2, eta=2)
    for trial in range(2):
        scheduler.started(trial, StartTrial(1, 0))
    scheduler.exhausted()
    run_to(scheduler, 0, 1, 0)
    assert scheduler.next() is WAIT
    run_to(scheduler, 1, 1, 0)
    scheduler.promoted(PromoteTrial(0, 2))
    assert scheduler.next() is FINISHED, "nobody is promoted from the last rung"


def test_a_trial_that_pauses_at_the_last_rung_is_complete() -> None:
    scheduler = ASHA(R=1, eta=2)
    for trial in range(4):
        scheduler.started(trial, StartTrial(1, 0))
        run_to(scheduler, trial, 1, 0)
    assert scheduler.next() == StartTrial(1, 0)


def test_brackets_begin_with_more_budget_and_share_trials() -> None:
    scheduler = ASHA(R=16, eta=4, max_brackets=9)
    assert [[rung.budget for rung in bracket.rungs] for bracket in scheduler.brackets] == [[1, 4, 16], [4, 16], [16]]
    for trial in range(25):
        start = scheduler.next()
        assert isinstance(start, StartTrial) and start.budget == [1, 4, 16][start.bracket]
        scheduler.started(trial, start)
    # Shares 16/3, 4/2 and 1 of 25/3.
    assert [bracket.num_started for bracket in scheduler.brackets] == [16, 6, 3]
    assert [len(ASHA(R=16, max_brackets=num).brackets) for num in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"R": 81, "eta": 1}, "eta must be a number above 1, not 1"),
        ({"R": 81, "eta": math.inf}, "eta must be a number above 1, not inf"),
        ({"R": 81, "r": 0}, "r is 0 and R is 81"),
        ({"R": 1, "r": 2}, "r is 2 and R is 1"),
        ({"R": math.inf}, "R is inf"),
        ({"R": 64, "s": 4}, "r \\* eta\\^s is 256, and R is 64; use s <= 3"),
        ({"R": 64, "s": -1}, "s must be a whole number of at least 0, not -1"),
        ({"R": 64, "s": 0.5}, "s must be a whole number of at least 0, not 0.5"),
        ({"R": 64, "max_brackets": 0}, "max_brackets must be a whole number of at least 1, not 0"),
        ({"R": 64, "max_brackets": True}, "max_brackets must be a whole number of at least 1, not True"),
    ],
)
def test_arguments_out_of_range_are_named_with_their_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        ASHA(**arguments)
    assert len(ASHA(R=64, s=3).brackets[0].rungs) == 1
