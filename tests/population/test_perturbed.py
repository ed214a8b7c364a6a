"""A number stands for parameters with noise."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.perturbed import Perturbed, start_parameters, usual_table, weights_of_draws
from ropewalk.population.trial import Trial
from ropewalk.population.weighted_sum import Draws

DRAWS = Draws(NoiseTable(2**12), seed=1, dim=6)
CENTRE = np.arange(6, dtype=np.float32)


def test_mirrored_candidates_are_the_centre_plus_and_minus_one_draw() -> None:
    perturbed = Perturbed(CENTRE, 0.5, DRAWS)
    assert np.array_equal(perturbed.parameters(14), CENTRE + np.float32(0.5) * DRAWS[7])
    assert np.array_equal(perturbed.parameters(15), CENTRE - np.float32(0.5) * DRAWS[7])
    assert perturbed.parameters(14).dtype == np.float32


def test_without_mirrors_each_candidate_has_a_draw_and_each_parameter_may_have_a_width() -> None:
    widths = np.array([0, 1, 2, 3, 4, 5], np.float32)
    perturbed = Perturbed(CENTRE, widths, DRAWS, mirrored=False)
    assert np.array_equal(perturbed.parameters(15), CENTRE + widths * DRAWS[15])


def test_the_fitness_function_gets_parameters_of_its_own() -> None:
    def spoil(x: Any, trial: Trial) -> float:
        x[:] = trial.seed
        return float(x[0])

    perturbed = Perturbed(CENTRE, 0.5, DRAWS)
    before = perturbed.parameters(3).copy()
    assert perturbed(spoil, 3, Trial(9)).fitness == 9
    assert np.array_equal(perturbed.parameters(3), before)


def test_it_travels_as_its_centre_and_little_else() -> None:
    large = Perturbed(np.zeros(250_000, np.float32), 0.5, Draws(usual_table(250_000), 0, 250_000))
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(large, protocol=5, buffer_callback=buffers.append)
    assert len(text) < 1000 and [buffer.raw().nbytes for buffer in buffers] == [1_000_000]
    small = Perturbed(CENTRE, 0.5, DRAWS)
    arrived = pickle.loads(pickle.dumps(small))  # ours
    assert np.array_equal(arrived.parameters(21), small.parameters(21))


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 40), min_size=1), st.data())
def test_the_weight_of_a_draw_is_that_of_plus_less_that_of_minus(candidates: set[int], data: st.DataObject) -> None:
    present = sorted(candidates)
    weights = data.draw(st.lists(st.integers(-8, 8), min_size=len(present), max_size=len(present)))
    of: dict[int, float] = {}
    for candidate, weight in zip(present, weights, strict=True):
        of[candidate // 2] = of.get(candidate // 2, 0) + (-weight if candidate % 2 else weight)
    numbers, of_draws = weights_of_draws(np.array(present), np.array(weights, np.float64))
    assert numbers.tolist() == sorted(of) and of_draws.tolist() == [of[number] for number in sorted(of)]


def test_the_usual_table_is_roomy_and_not_larger_than_needed() -> None:
    assert [usual_table(dim).size for dim in (4, 20_000, 250_000, 8_000_000)] == [2**20, 2**22, 2**25, 2**26]


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (0, "at least 1 parameter, not 0"),
        (np.zeros((2, 2)), r"not an array of shape \(2, 2\)"),
        (np.zeros(0), r"not an array of shape \(0,\)"),
        ([1.0, float("nan")], "infinite or not a number"),
    ],
)
def test_what_are_no_parameters_is_refused(initial: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start_parameters(initial)


def test_parameters_to_start_from_are_a_copy_that_nobody_changes() -> None:
    mine = np.ones(3)
    start = start_parameters(mine)
    mine[:] = 5
    assert start.tolist() == [1, 1, 1] and start.dtype == np.float32 and not start.flags.writeable
    assert start_parameters(2).tolist() == [0, 0]
