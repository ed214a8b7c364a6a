"""A straggler is far above the median of those that do the same."""

from __future__ import annotations

import pytest

from ropewalk.control.stragglers import stragglers


def test_each_group_has_its_own_median() -> None:
    groups = ["actor"] * 3 + ["learner"] * 3
    assert stragglers(groups, [1, 1, 5, 50, 51, 49]) == [False, False, True, False, False, False]


@pytest.mark.parametrize("values", [[], [9.0], [0.0, 9.0], [0.0, None, 9.0]])
def test_of_fewer_than_three_none_is_one(values: list[float | None]) -> None:
    for times in (1.5, 2.0):
        assert stragglers(["actor"] * len(values), values, times=times) == [False] * len(values)


def test_what_is_not_known_is_left_out_and_is_no_straggler() -> None:
    assert stragglers(["a"] * 5, [None, 1.0, 1.0, 1.0, 9.0]) == [False, False, False, False, True]


def test_small_differences_and_small_multiples_are_no_reason() -> None:
    assert stragglers(["a"] * 3, [0.0, 0.0, 3.0], least=5.0) == [False] * 3
    assert stragglers(["a"] * 3, [10.0, 10.0, 19.0]) == [False] * 3
    assert stragglers(["a"] * 3, [10.0, 10.0, 21.0], least=5.0) == [False, False, True]


def test_a_straggler_is_above_both_bounds_and_not_at_them() -> None:
    assert stragglers(["a"] * 3, [10.0, 10.0, 20.0]) == [False] * 3
    assert stragglers(["a"] * 3, [1.0, 1.0, 6.0], least=5.0) == [False] * 3
    assert stragglers(["a"] * 3, [4.0, 4.0, 9.0], least=5.0) == [False] * 3, "it is the distance that counts"
    assert stragglers(["a"] * 3, [4.0, 4.0, 9.5], least=5.0) == [False, False, True]


def test_without_a_least_distance_the_smallest_excess_counts() -> None:
    assert stragglers(["a"] * 3, [0.0, 0.0, 0.001]) == [False, False, True]
    for value in (-4.0, 0.0, 4.0):
        assert stragglers(["a"] * 3, [value] * 3) == [False] * 3, "they do not differ"


def test_groups_and_values_that_do_not_match_are_an_error() -> None:
    for groups, values in ((["a"] * 4, [1.0] * 3), (["a"] * 3, [1.0] * 4)):
        with pytest.raises(ValueError, match="zip"):
            stragglers(groups, values)
