"""Ranks in place of fitnesses."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.ranks import SHAPINGS, centred_ranks, log_utilities, normalised, ranks, shaping, signs

FITNESSES = st.lists(st.integers(-20, 20).map(float) | st.sampled_from([math.inf, -math.inf]), min_size=1, max_size=30)


def test_ranks_are_positions_in_ascending_order() -> None:
    assert ranks(np.array([3.0, -1.0, 7.0])).tolist() == [1, 0, 2]


def test_equal_fitnesses_share_the_mean_of_their_ranks() -> None:
    assert ranks(np.array([5.0, 1.0, 5.0, 9.0, 5.0])).tolist() == [2, 0, 2, 4, 2]


def test_centred_ranks_go_from_minus_a_half_to_a_half() -> None:
    assert centred_ranks(np.array([10.0, 1e9, -3.0])).tolist() == [0.0, 0.5, -0.5]
    assert centred_ranks(np.array([1.0])).tolist() == [0.0]


def test_signs_say_on_which_side_of_the_median_a_fitness_is() -> None:
    assert signs(np.array([1.0, 2.0, 50.0])).tolist() == [-0.5, 0.0, 0.5]
    assert signs(np.array([1.0, 2.0, 3.0, 50.0])).tolist() == [-0.5, -0.5, 0.5, 0.5]


def test_normalised_fitnesses_have_mean_0_and_deviation_1_and_no_infinity_spoils_them() -> None:
    values = normalised(np.array([1.0, 2.0, 6.0, -math.inf]))
    assert values[3] == values[0] and np.isfinite(values).all()
    assert np.isclose(values.mean(), 0) and np.isclose(values.std(), 1)
    assert normalised(np.array([-math.inf, -math.inf])).tolist() == [0, 0]


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-600, 1.0, 2.0**600, 2.0**1000])
def test_normalised_fitnesses_may_be_of_any_size(scale: float) -> None:
    # Their squares were infinite, or 0: all weights became 0 or NaN, and nothing was learnt.
    fitnesses = np.array([1.0, 2.0, 6.0, -3.5])
    assert normalised(fitnesses * scale).tolist() == normalised(fitnesses).tolist()
    assert normalised(np.zeros(3)).tolist() == [0, 0, 0]


def test_utilities_are_those_of_the_paper() -> None:
    fitnesses = np.array([0.3, 0.1, 0.9, 0.5, 0.2])  # ranks from the best, 1 to 5: 3, 5, 1, 2, 4
    raw = [max(0.0, math.log(5 / 2 + 1) - math.log(rank)) for rank in (3, 5, 1, 2, 4)]
    assert np.allclose(log_utilities(fitnesses), [value / sum(raw) - 1 / 5 for value in raw])


@settings(deadline=None, max_examples=25)
@given(FITNESSES, st.sampled_from(sorted(SHAPINGS)), st.randoms())
def test_weights_sum_to_0_follow_the_order_and_not_the_places(
    fitnesses: list[float], name: str, shuffled: random.Random
) -> None:
    shape = shaping(name)
    weights = shape(np.array(fitnesses))
    assert name == "signs" or abs(weights.sum()) < 1e-9
    order = list(range(len(fitnesses)))
    shuffled.shuffle(order)
    assert np.allclose(shape(np.array(fitnesses)[order]), weights[order], atol=1e-12)
    for i, one in enumerate(fitnesses):
        for j, other in enumerate(fitnesses):
            if one <= other:
                assert weights[i] <= weights[j] + 1e-12


@settings(deadline=None, max_examples=20)
@given(FITNESSES, st.sampled_from(sorted(set(SHAPINGS) - {"normalised"})))
def test_only_the_order_counts(fitnesses: list[float], name: str) -> None:
    values = np.array(fitnesses)
    assert np.array_equal(shaping(name)(values), shaping(name)(np.cbrt(values) + 3))


def test_an_unknown_shaping_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"one of 'centred_ranks', .* not 'ranks'"):
        shaping("ranks")
