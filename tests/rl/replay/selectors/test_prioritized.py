"""Prioritized draws against the formulas of Schaul 2016, and at the edges of numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.replay.selectors import Prioritized
from ropewalk.rl.seeds import generator


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200), st.floats(0, 2))
def test_probabilities_are_those_of_the_paper(priorities: list[float], exponent: float) -> None:
    state = Prioritized(exponent).make(generator(0), 100)
    given_priorities = np.array(priorities)
    state.insert(np.arange(len(priorities)), given_priorities)
    keys, probabilities = state.select(64)
    powers = [priority**exponent for priority in priorities]
    np.testing.assert_allclose(probabilities, [powers[key] / sum(powers) for key in keys.tolist()], rtol=1e-12)


def test_a_batch_has_one_draw_in_each_equal_slice() -> None:
    state = Prioritized(1.0).make(generator(0), 100)
    state.insert(np.arange(8), np.ones(8))
    for _ in range(20):
        assert state.select(8)[0].tolist() == list(range(8))
    assert {tuple(state.select(4)[0] // 2) for _ in range(20)} == {(0, 1, 2, 3)}


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_an_item_of_priority_0_is_only_drawn_if_all_are_0(exponent: float) -> None:
    state = Prioritized(exponent).make(generator(0), 100)
    state.insert(np.arange(4), np.array([0.0, 1.0, 0.0, 2.0]))
    assert set(state.select(200)[0].tolist()) == {1, 3}
    state.update(np.array([1, 3]), np.zeros(2))
    state.delete(np.array([2]))
    keys, probabilities = state.select(200)
    assert set(keys.tolist()) == {0, 1, 3} and np.allclose(probabilities, 1 / 3)


def test_priorities_at_the_ends_of_floats_are_neither_lost_nor_infinite() -> None:
    state = Prioritized(2.0).make(generator(0), 100)
    state.insert(np.arange(3), np.array([1e-200, 1e-200, 0.0]))
    keys, probabilities = state.select(50)
    assert set(keys.tolist()) == {0, 1} and np.allclose(probabilities, 0.5)
    state.update(np.arange(3), np.full(3, 1e200))
    keys, probabilities = state.select(50)
    assert set(keys.tolist()) == {0, 1, 2} and np.allclose(probabilities, 1 / 3)


@pytest.mark.parametrize("exponent", [-0.1, float("nan"), float("inf")])
def test_an_exponent_that_is_no_exponent_is_refused(exponent: float) -> None:
    with pytest.raises(ValueError, match="exponent of priorities is"):
        Prioritized(exponent)
