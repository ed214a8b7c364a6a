"""Draws within limits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.rl.replay.selectors.drawing import occurrences, repeat_to_limits, within_limits


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_occurrences_counts_equal_entries_before_each_one(keys: list[int]) -> None:
    assert occurrences(np.array(keys)).tolist() == [keys[:i].count(key) for i, key in enumerate(keys)]


def test_draws_beyond_the_limit_of_an_item_are_left_out_and_the_first_ones_stay() -> None:
    keys, probabilities = within_limits(np.array([2, 0, 2, 2, 0]), np.arange(5.0), np.array([1, 9, 2]))
    assert keys.tolist() == [2, 0, 2] and probabilities.tolist() == [0, 1, 2]


def test_without_limits_all_draws_stay_and_the_first_item_is_chosen_each_time() -> None:
    keys = np.array([2, 0, 2])
    assert within_limits(keys, np.ones(3), None)[0] is keys
    assert repeat_to_limits(keys, None, 4)[0].tolist() == [2, 2, 2, 2]


def test_items_are_chosen_in_order_each_until_its_limit() -> None:
    limits = np.array([2, 7, 1])
    assert repeat_to_limits(np.array([2, 0, 1]), limits, 5)[0].tolist() == [2, 0, 0, 1, 1]
    assert repeat_to_limits(np.array([2, 0]), limits, 5)[0].tolist() == [2, 0, 0]
