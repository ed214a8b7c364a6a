"""A bracket keeps which trial stands on which rung."""

from __future__ import annotations

import math

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers.rungs import Bracket, budgets_from, checked_count


def test_budgets_are_powers_up_to_the_most() -> None:
    assert budgets_from(1, 81, 3) == [1, 3, 9, 27, 81]
    assert budgets_from(1, 243, 3)[-1] == 243, "the logarithm of 243 to base 3 is 4.999999999999999"
    assert budgets_from(2, 17.9, 3) == [2, 6]
    assert len(budgets_from(0.1, 0.9, 3)) == 3, "0.1 * 9 is above 0.9 in binary"
    assert budgets_from(1, 4.5, 1.5) == [1, 1.5, 2.25, 3.375]
    with pytest.raises(SearchInvalid, match="r is nan"):
        budgets_from(math.nan, 4, 2)


@pytest.mark.parametrize("eta", [0.5, 1, math.inf, math.nan])
def test_rungs_need_a_factor_that_is_above_one_and_finite(eta: float) -> None:
    with pytest.raises(SearchInvalid, match=f"eta must be a number above 1, not {eta}"):
        budgets_from(1, 81, eta)


@pytest.mark.parametrize(("r", "R"), [(0, 4), (-0.5, 4), (5, 4), (1, math.inf)])
def test_budgets_need_a_least_and_a_most_that_is_finite(r: float, R: float) -> None:
    with pytest.raises(SearchInvalid, match=f"above 0 and at most R, but r is {r} and R is {R}"):
        budgets_from(r, R, 2)
    assert budgets_from(0.5, 0.5, 2) == [0.5], "one rung"


def test_a_trial_that_ends_under_way_counts_with_its_last_score_and_one_that_fails_as_the_worst() -> None:
    bracket = Bracket([1, 2])
    for trial, score in enumerate((-5.0, 0.5, 0.9)):
        bracket.start(trial)
        bracket.report(trial, score)
    bracket.start(3)
    bracket.end(1)
    bracket.fail(2)
    bracket.end(3)
    bracket.pause(0, 1)
    rung = bracket.rungs[0]
    assert rung.ranking == [(-0.5, 1), (5.0, 0), (math.inf, 2), (math.inf, 3)], "3 has reported nothing"
    assert rung.best_promotable(4) == 0, "the others train no more"


def test_a_count_is_a_whole_number_that_is_large_enough() -> None:
    assert [checked_count("num", value, 2) for value in (2, 3)] == [2, 3]
    for value in (1, True, 2.0):
        with pytest.raises(SearchInvalid, match=f"num must be a whole number of at least 2, not {value}"):
            checked_count("num", value, 2)  # pyright: ignore[reportArgumentType]


def test_a_trial_climbs_from_rung_to_rung() -> None:
    bracket = Bracket([1, 2, 4])
    bracket.start(7)
    assert bracket.num_started == 1 and bracket.is_open
    for number, step in enumerate((1, 2, 4)):
        assert [bracket.is_awaited(rung) for rung in range(3)] == [rung == number for rung in range(3)]
        assert bracket.is_open == (number < 2), "none is promoted from the last rung"
        bracket.report(7, step / 10)
        bracket.pause(7, step)
        assert not bracket.is_open and bracket.rungs[number].ranking == [(-step / 10, 7)]
        if number < 2:
            assert bracket.rungs[number].best_promotable(1) == 7
            bracket.promote(7)
            assert bracket.rungs[number].num_promoted == 1
            assert bracket.rungs[number].best_promotable(1) is None
    assert bracket.num_started == 1


def test_only_the_best_of_a_rung_are_promotable() -> None:
    bracket = Bracket([1, 2])
    for trial, score in enumerate((0.1, 0.9, 0.9, 0.5)):
        bracket.start(trial)
        bracket.report(trial, score)
        bracket.pause(trial, 1)
    rung = bracket.rungs[0]
    assert [rung.best_promotable(num) for num in range(3)] == [None, 1, 1]
    bracket.promote(1)
    assert [rung.best_promotable(num) for num in range(4)] == [None, None, 2, 2]
    bracket.end(2)
    assert [rung.best_promotable(num) for num in range(5)] == [None, None, None, 3, 3]
    bracket.fail(3)
    assert rung.best_promotable(4) == 0
    assert rung.ranking == [(-0.9, 1), (-0.9, 2), (-0.5, 3), (-0.1, 0)], "it failed when it had reported already"


def test_a_trial_that_trains_on_enters_the_last_rung_reached() -> None:
    bracket = Bracket([1, 2, 4])
    for trial in range(2):
        bracket.start(trial)
        bracket.report(trial, 0.5)
    assert bracket.pass_by(0, 0.5) is None
    passed = bracket.pass_by(0, 3)
    assert passed == (bracket.rungs[1], 0)
    assert bracket.pass_by(0, 3.5) is None
    assert bracket.pass_by(1, 2) == (bracket.rungs[1], 1)
    assert bracket.pass_by(0, 4) == (bracket.rungs[2], 0)
    assert bracket.pass_by(0, 5) is None
    bracket.end(0)
    bracket.stop(1)
    bracket.end(1)
    assert [len(rung.ranking) for rung in bracket.rungs] == [0, 2, 1]
