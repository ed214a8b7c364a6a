"""Columns of rows: numbers that JSON has, and never too many points."""

from __future__ import annotations

import itertools
import math

import pytest

from ropewalk.control.columns import MOST_POINTS, columns, finite, places


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "text", None])
def test_what_json_has_not_is_none(value: object) -> None:
    assert finite(value) is None


def test_numbers_stay() -> None:
    assert (finite(3), finite(-0.5)) == (3, -0.5)


@pytest.mark.parametrize(("first", "end", "most"), [(0, 10, 10), (0, 11, 10), (3, 1000, 7), (5, 6, 1), (0, 25, 12)])
def test_chosen_places_are_few_equally_far_apart_and_end_with_the_last(first: int, end: int, most: int) -> None:
    chosen = list(places(first, end, most))
    assert len(chosen) <= most and chosen[-1] == end - 1 and chosen[0] >= first
    assert len({after - before for before, after in itertools.pairwise(chosen)}) <= 1
    if end - first <= most:
        assert chosen == list(range(first, end))


def test_no_rows_have_no_places() -> None:
    assert list(places(4, 4)) == list(places(9, 4)) == []


def test_a_curve_of_a_million_points_becomes_one_of_the_width_of_a_screen() -> None:
    assert MOST_POINTS / 2 < len(places(0, 10**6)) <= MOST_POINTS


def test_a_row_without_a_column_has_none_there() -> None:
    assert columns([{"a": 1.0, "b": math.inf}, {"b": 2}], ("a", "b")) == {"a": [1.0, None], "b": [None, 2]}
