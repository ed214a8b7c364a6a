"""How user functions are called, and what they may return."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from ropewalk.population.evaluation import taking_trial
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.trial import Trial


def test_the_trial_is_passed_to_those_who_ask_for_it() -> None:
    trial = Trial(1)
    assert taking_trial(lambda x: x, 1)("x", trial) == "x"
    assert taking_trial(lambda x, trial: trial, 1)("x", trial) is trial
    assert taking_trial(lambda x, scale=2: scale, 1)("x", trial) == 2
    assert taking_trial(lambda x, trial=None: trial, 1)("x", trial) is trial
    assert taking_trial(lambda x, y: (x, y), 2)("x", "y", trial) == ("x", "y")
    assert taking_trial(lambda x, y, t: t, 2)("x", "y", trial) is trial
    assert taking_trial(sum, 1)([1, 2], trial) == 3


def test_a_function_keeps_the_name_that_its_author_knows() -> None:
    def walk(x: float, slope: float = 1.0) -> float:
        return x * slope

    class Maze:
        def __call__(self, x: float) -> float:
            return x

    given: list[Any] = [walk, functools.partial(walk, slope=1.0), Maze()]
    assert [taking_trial(each, 1).__name__ for each in given] == ["walk", "walk", "Maze"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", [lambda: 0, lambda x, trial, more: 0])
def test_a_function_with_other_arguments_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="must take 1 or 2 positional arguments"):
        taking_trial(function, 1)
    with pytest.raises(TypeError, match="must be a function, not 3"):
        taking_trial(3, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.array([2.0]), True + 1])
def test_any_one_number_is_a_fitness(value: Any) -> None:
    assert outcome_of(value) == Outcome(2.0)


@pytest.mark.parametrize("value", [None, "2", (2.0, 1), np.ones(2)])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="return a number to maximise"):
        outcome_of(value)


def test_all_candidates_of_an_ask_have_one_seed_in_common_and_tests_have_their_own() -> None:
    one, other, test = Trial(5, common=2**40 + 9), Trial(6, common=2**40 + 9), Trial(7, common=9, is_test=True)
    assert one.common_seed == other.common_seed == 9 and one.seed != other.seed
    assert one.seeds(3, common=True) == other.seeds(3, common=True) != one.seeds(3)
    assert test.common_seed == test.seed == 7 and Trial(8).common_seed == 8


def test_trials_repeat_and_differ() -> None:
    one, again, other = Trial(2**63 + 5), Trial(2**63 + 5), Trial(2**63 + 6)
    assert one.seed == again.seed and 0 <= one.seed < 2**31
    assert one.seeds(3) == again.seeds(3) and one.seeds(3) != other.seeds(3)
    assert one.rng.random() == again.rng.random() != other.rng.random()
