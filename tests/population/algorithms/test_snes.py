"""SNES, against a single-process reference and on its problems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropewalk.population.algorithms.snes import SNES
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.trial import Trial
from tests.population.algorithms.cart_pole import SEEDS, mean_return, play
from tests.population.local_loop import ask_and_evaluate, is_plain, rastrigin, run, same_state, sphere

TABLE = NoiseTable(2**16, 9)


def small(**changes: Any) -> SNES:
    usual: dict[str, Any] = {"population": 10, "sigma": 0.5, "noise": TABLE, "seed": 4}
    return SNES(5, **usual | changes)


def test_it_equals_a_single_process_reference_step_by_step() -> None:
    raw = [max(0.0, math.log(10 / 2 + 1) - math.log(rank)) for rank in range(1, 11)]
    utilities = [value / sum(raw) - 1 / 10 for value in raw]  # of the best, the second, ...
    mean, width, rate = np.zeros(5), np.full(5, 0.5), (3 + math.log(5)) / (5 * math.sqrt(5))
    algorithm = small()
    for generation in range(15):
        draws = [TABLE.slice(TABLE.index(4, 10 * generation + i, 5), 5).astype(np.float64) for i in range(10)]
        draws.sort(key=lambda draw: -sphere(mean + width * draw, Trial(0)))
        mean = mean + width * sum(u * z for u, z in zip(utilities, draws, strict=True))
        width = width * np.exp(rate / 2 * sum(u * (z**2 - 1) for u, z in zip(utilities, draws, strict=True)))
        run(algorithm, sphere, 1, first=generation)
        np.testing.assert_allclose(algorithm.mean, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(algorithm.widths, width, rtol=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_climbs_the_sphere_in_100_generations(seed: int) -> None:
    algorithm = SNES(10, population=20, sigma=0.5, seed=seed, noise=TABLE)
    run(algorithm, sphere, 100)
    assert sphere(algorithm.incumbent(), Trial(0)) > -1e-4  # from -10


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_the_best_of_rastrigins_optima_in_50_generations_of_100(seed: int) -> None:
    algorithm = SNES([2.2, -1.7], population=100, sigma=2.0, seed=seed, noise=TABLE)
    run(algorithm, rastrigin, 50)
    assert rastrigin(algorithm.incumbent(), Trial(0)) > -0.5  # the next best optima have -1


@pytest.mark.parametrize("seed", SEEDS)
def test_it_solves_cart_pole_in_12_generations_of_12(seed: int) -> None:
    algorithm = SNES(4, population=12, sigma=0.5, seed=seed, noise=TABLE)
    run(algorithm, play, 12)
    assert mean_return(algorithm.incumbent()) >= 475


def test_a_loaded_run_goes_on_as_the_unbroken_one() -> None:
    one, other = small(), small()
    run(one, sphere, 3)
    candidates, outcomes = ask_and_evaluate(one, sphere, ask=3)
    one.tell(candidates[:4], outcomes[:4])
    saved = one.state_dict()
    assert is_plain(saved)
    other.load_state_dict(saved)
    for each in (one, other):
        each.tell(candidates[4:], outcomes[4:])
        run(each, sphere, 2, first=4)
    assert one.generation == 6 and same_state(one.state_dict(), other.state_dict())


def test_order_and_grouping_of_what_is_told_change_no_bit() -> None:
    one, other = small(), small()
    run(one, sphere, 1)
    candidates, outcomes = ask_and_evaluate(other, sphere)
    for i in (7, 2, 9, 0, 1, 3, 8, 6, 5, 4):
        other.tell([candidates[i]], [outcomes[i]])
    assert same_state(one.state_dict(), other.state_dict())


def test_a_step_is_taken_without_those_that_were_dropped() -> None:
    algorithm = small(population=20)
    for generation in range(60):
        candidates, outcomes = ask_and_evaluate(algorithm, sphere, ask=generation)
        gone = generation % 20
        algorithm.tell(candidates[:gone] + candidates[gone + 1 :], outcomes[:gone] + outcomes[gone + 1 :])
        algorithm.drop([candidates[gone]])
        assert algorithm.generation == generation + 1
    assert sphere(algorithm.incumbent(), Trial(0)) > -1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population": 1}, "population must be at least 2, not 1"),
        ({"sigma": [1, 1, 0, 1, 1]}, "sigma must be above 0"),
        ({"learning_rate": 0}, "learning_rate must be above 0, not 0"),
        ({"width_learning_rate": -1}, "width_learning_rate must be above 0, not -1"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_the_state_of_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match="population 10 there and 12 here"):
        small(population=12).load_state_dict(small().state_dict())
