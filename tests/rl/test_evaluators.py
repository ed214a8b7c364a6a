"""Which weights the evaluators of a program evaluate."""

from __future__ import annotations

import pytest

from ropewalk.rl.evaluators import EvaluationTurns


def taken(steps: list[int], every_steps: int | None, replica: int = 0, replicas: int = 1) -> list[int]:
    turns = EvaluationTurns(every_steps, replica, replicas)
    return [number for number in steps if turns.take(number)]


def test_the_first_weights_after_each_multiple_are_evaluated() -> None:
    assert taken([0, 60, 90, 120, 180, 199, 200, 260], 100) == [120, 200]


def test_multiples_that_passed_during_an_evaluation_are_evaluated_once() -> None:
    assert taken([0, 550, 590, 610], 100) == [550, 610]


def test_without_an_interval_all_weights_are_evaluated() -> None:
    assert taken([0, 1, 2], None) == [0, 1, 2]


@pytest.mark.parametrize("replicas", [2, 3])
def test_several_evaluators_share_the_turns(replicas: int) -> None:
    steps = list(range(0, 1000, 50))
    shares = [number for replica in range(replicas) for number in taken(steps, 100, replica, replicas)]
    assert sorted(shares) == list(range(100, 1000, 100))


def test_steps_that_go_back_after_a_death_of_the_learner_are_not_evaluated_again() -> None:
    assert taken([100, 210, 150, 220, 310], 100) == [100, 210, 310]
