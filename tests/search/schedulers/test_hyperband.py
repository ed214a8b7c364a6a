"""Hyperband promotes what algorithm 1 of its paper promotes, in whatever order trials report."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers import FINISHED, GO_ON, WAIT, Hyperband, PromoteTrial, StartTrial, Wait
from tests.search.curves import NUM_CONFIGURATIONS, accuracy
from tests.search.schedulers.orders import evaluations, in_many_orders, recorded_search


def test_the_table_for_81_and_3_is_that_of_the_paper() -> None:
    assert Hyperband(R=81, eta=3).table() == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


def test_budgets_end_with_R_whatever_r_is() -> None:
    assert Hyperband(R=100, r=10, eta=3).table() == [
        [(9, 100 / 9), (3, 100 / 3), (1, 100)],
        [(5, 100 / 3), (1, 100)],
        [(3, 100)],
    ]
    assert Hyperband(R=5, r=5).table() == [[(1, 5)]]


def test_a_trial_ends_by_itself_at_R() -> None:
    assert Hyperband(R=100, eta=3).max_steps == 100


def paper_hyperband(R: float, eta: int, first: int) -> set[tuple[int, float]]:
    """Algorithm 1 of arXiv 1603.06560, as it is printed; T is trials, and L losses.

    Returns:
        Each configuration with each budget that it gets.
    """
    s_max = math.floor(math.log(R, eta) + 1e-9)
    total = (s_max + 1) * R  # B
    evaluated: set[tuple[int, float]] = set()
    num_sampled = 0
    for s in reversed(range(s_max + 1)):
        n, r = math.ceil(total / R * eta**s / (s + 1)), R * eta**-s
        trials = list(range(num_sampled, num_sampled + n))  # get_hyperparameter_configuration(n)
        num_sampled += n
        for i in range(s + 1):
            n_i, r_i = math.floor(n * eta**-i + 1e-9), round(r * eta**i, 9)
            evaluated |= {(t, r_i) for t in trials}
            losses = {t: -accuracy(first + t, r_i) for t in trials}  # run_then_return_val_loss(t, r_i)
            trials = sorted(trials, key=lambda t: (losses[t], t))[: math.floor(n_i / eta)]  # top_k
    return evaluated


@in_many_orders
def test_every_trial_gets_the_budgets_of_the_paper(seed: int, places: int) -> None:
    R, eta = ((27, 3), (16, 4), (16, 2))[seed % 3]
    steps = [eta**k for k in range(5) if eta**k <= R]
    search = recorded_search(Hyperband(R=R, eta=eta), seed, places, steps=[*steps, R + 1], num_trials=1000)
    first = random.Random(seed).randrange(NUM_CONFIGURATIONS)
    assert evaluations(search) == paper_hyperband(R, eta, first)


def test_the_whole_table_for_81_and_3_is_run() -> None:
    search = recorded_search(Hyperband(R=81), 5, 4, steps=[1, 3, 9, 27, 81, 82], num_trials=1000)
    first = random.Random(5).randrange(NUM_CONFIGURATIONS)
    assert evaluations(search) == paper_hyperband(81, 3, first)
    assert len(search.trials) == 81 + 34 + 15 + 8 + 5


def started(scheduler: Hyperband, num: int) -> None:
    for trial in range(num):
        start = scheduler.next()
        assert isinstance(start, StartTrial)
        scheduler.started(trial, start)


def run_to(scheduler: Hyperband, trial: int, step: float, score: float) -> StartTrial | PromoteTrial | Wait:
    assert scheduler.reported(trial, step, score) is GO_ON
    scheduler.paused(trial, step)
    return scheduler.next()


def test_a_rung_waits_until_it_is_complete_and_places_begin_the_next_bracket() -> None:
    scheduler = Hyperband(R=4, eta=2)  # 4 at 1, 2 at 2, 1 at 4; 3 at 2, 1 at 4; 3 at 4
    started(scheduler, 4)
    assert [run_to(scheduler, trial, 1, trial) for trial in (3, 0, 2)] == [StartTrial(2, 1)] * 3
    scheduler.started(4, StartTrial(2, 1))
    assert run_to(scheduler, 1, 1, 1) == PromoteTrial(3, 2)
    scheduler.promoted(PromoteTrial(3, 2))
    assert scheduler.next() == PromoteTrial(2, 2)
    scheduler.promoted(PromoteTrial(2, 2))
    assert scheduler.next() == StartTrial(2, 1)
    assert run_to(scheduler, 2, 2, 9) == StartTrial(2, 1), "rung 1 has another trial"
    assert run_to(scheduler, 3, 2, 8) == PromoteTrial(2, 4)


def test_without_places_for_new_trials_it_waits_and_then_finishes() -> None:
    scheduler = Hyperband(R=2, eta=2)  # 2 at 1, 1 at 2; 2 at 2
    started(scheduler, 4)
    assert scheduler.next() is WAIT, "two trials of the first bracket are under way"
    assert run_to(scheduler, 0, 1, 0) is WAIT
    assert run_to(scheduler, 1, 1, 0) == PromoteTrial(0, 2)
    scheduler.promoted(PromoteTrial(0, 2))
    assert scheduler.next() is FINISHED


def test_iterations_repeat_all_brackets() -> None:
    twice, endless = Hyperband(R=2, eta=2, iterations=2), Hyperband(R=2, eta=2, iterations=None)
    for scheduler in (twice, endless):
        for trial, start in enumerate(
            [StartTrial(1, 0), StartTrial(1, 0), StartTrial(2, 1), StartTrial(2, 1)]
            + [StartTrial(1, 2)] * 2
            + [StartTrial(2, 3)] * 2
        ):
            assert scheduler.next() == start
            scheduler.started(trial, start)
    assert twice.next() is WAIT
    assert endless.next() == StartTrial(1, 4)


def test_a_bracket_that_is_cut_short_promotes_its_best() -> None:
    scheduler = Hyperband(R=9, eta=3)
    started(scheduler, 2)
    assert run_to(scheduler, 0, 1, 0.1) == StartTrial(1, 0)
    assert run_to(scheduler, 1, 1, 0.2) == StartTrial(1, 0)
    scheduler.exhausted()
    assert scheduler.next() == PromoteTrial(1, 3)
    scheduler.promoted(PromoteTrial(1, 3))
    assert scheduler.next() is WAIT
    assert run_to(scheduler, 1, 3, 0.2) == PromoteTrial(1, 9)


def test_failed_and_ended_trials_complete_a_rung_and_are_not_replaced() -> None:
    scheduler = Hyperband(R=2, eta=2)
    started(scheduler, 2)
    scheduler.failed(0)
    assert run_to(scheduler, 1, 1, -5) == PromoteTrial(1, 2), "the failed one is worse"
    scheduler = Hyperband(R=4, eta=2)
    started(scheduler, 4)
    for trial in range(3):
        run_to(scheduler, trial, 1, -trial)
    scheduler.reported(3, 0.5, 1)
    scheduler.ended(3)
    assert scheduler.next() == PromoteTrial(0, 2), "the first of the two best has ended"
    scheduler.promoted(PromoteTrial(0, 2))
    assert scheduler.next() == StartTrial(2, 1)


def test_a_paused_trial_that_is_removed_is_not_promoted() -> None:
    scheduler = Hyperband(R=2, eta=2)
    started(scheduler, 2)
    run_to(scheduler, 0, 1, 1)
    run_to(scheduler, 1, 1, 0)
    scheduler.ended(0)
    assert scheduler.next() == StartTrial(2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"R": 81, "eta": 0.5}, "eta must be a number above 1, not 0.5"),
        ({"R": 81, "r": 100}, "r is 100 and R is 81"),
        ({"R": 81, "iterations": 0}, "iterations must be a whole number of at least 1, not 0"),
    ],
)
def test_arguments_out_of_range_are_named_with_their_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        Hyperband(**arguments)
