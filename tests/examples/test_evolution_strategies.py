"""One seed gives one result, bit by bit, for any number of evaluators and in both modes; and it is a good one."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

np = pytest.importorskip("numpy")
LoadExample = Callable[[str], types.ModuleType]


def test_ranks_are_centred(load_example: LoadExample) -> None:
    ranks = load_example("evolution_strategies").centred_ranks([(-3.0, 8.0), (0.5, 1.0)])
    assert ranks == pytest.approx(np.array([[0, 3], [1, 2]]) / 3 - 0.5)


def test_a_step_climbs(load_example: LoadExample) -> None:
    example = load_example("evolution_strategies")
    evaluator = example.Evaluator(3)
    before, _ = evaluator.outcome()
    seeds = list(range(64))
    evaluator.step(seeds, evaluator.evaluate(seeds))
    assert evaluator.outcome()[0] > before


def test_evaluators_that_are_told_the_same_stay_equal(load_example: LoadExample) -> None:
    example = load_example("evolution_strategies")
    one, other = example.Evaluator(3), example.Evaluator(3)
    fitnesses = one.evaluate([5, 6])
    for evaluator in (one, other):
        evaluator.step([5, 6], fitnesses)
    assert one.outcome() == other.outcome()
    other.step([5, 6], fitnesses)
    assert one.outcome()[1] != other.outcome()[1]


def test_the_result_is_the_same_for_any_number_of_evaluators(load_example: LoadExample, mode: str) -> None:
    example = load_example("evolution_strategies")
    one, three = (example.main(mode=mode, num_evaluators=number, generations=20) for number in (1, 3))
    assert one == three and one["after"] > one["before"]
    evaluator = example.Evaluator(example.SEED)  # and the same without any node
    for generation in range(20):
        seeds = [example.SEED + 1 + generation * example.PAIRS + index for index in range(example.PAIRS)]
        evaluator.step(seeds, evaluator.evaluate(seeds))
    assert evaluator.outcome() == (one["after"], one["digest"])


def test_the_network_becomes_the_sine(load_example: LoadExample, mode: str) -> None:
    result = load_example("evolution_strategies").main(mode=mode)
    assert result["before"] < -0.4 and result["after"] > -0.03
