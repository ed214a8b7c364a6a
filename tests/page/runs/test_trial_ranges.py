"""Ranges of hyperparameters, which select trials by a brush or by fields."""

from __future__ import annotations

import math

import pytest

from ropewalk.page.pictures.parallel import ABSENT
from ropewalk.page.runs.trial_ranges import (
    Axis,
    address_of,
    axes_of,
    intervals_of,
    is_selected,
    ranges_in,
    ranges_of,
)

ROWS = [[0.1, "adam", 3.0], [0.01, "sgd", 1.0], [0.001, "adam", math.nan]]
AXES = [Axis("lr", None, 0.001, 0.1), Axis("optimizer", ("adam", "sgd")), Axis("loss", None, 1.0, 3.0)]


def numbers(ranges: dict[str, list[object]]) -> list[int]:
    return [at for at, row in enumerate(ROWS) if is_selected(row, AXES, ranges)]


def test_axes_are_numbers_or_kinds():
    assert axes_of({"metric": "loss", "names": ["lr", "optimizer"], "rows": ROWS}) == AXES
    assert axes_of({"metric": "loss", "names": ["lr"], "rows": []}) == []


def test_rows_in_all_ranges_are_selected():
    assert numbers({}) == [0, 1, 2]
    assert numbers({"lr": [0.01, None]}) == [0, 1]
    assert numbers({"lr": [None, 0.01], "optimizer": ["adam"]}) == [2]
    assert numbers({"loss": [None, 2.0]}) == [1], "what is no number is in no range"
    assert numbers({"gone": [1, 2]}) == [0, 1, 2], "an axis that is not shown"


def test_a_number_that_is_absent_is_in_no_range():
    rows = [[0.9, 1.0], [ABSENT, 2.0], [0.1, 3.0]]
    axes = axes_of({"metric": "loss", "names": ["momentum"], "rows": rows})
    assert axes[0] == Axis("momentum", None, 0.1, 0.9)
    assert [is_selected(row, axes, {"momentum": [None, 1.0]}) for row in rows] == [True, False, True]


def test_what_fields_select_is_brushed_and_what_is_brushed_is_in_the_fields():
    ranges = {"lr": [0.01, None], "optimizer": ["sgd"]}
    assert intervals_of(AXES, ranges) == [[[0.01, 0.1]], [[1, 1]], []]
    assert ranges_of(AXES, [[[0.0123456, 0.1]], [[0, 1]], []]) == {"lr": [0.01235, 0.1], "optimizer": ["adam", "sgd"]}


@pytest.mark.parametrize("given", [None, "x", [], [[["a", 1]], [[0]], 7], [None, None, None], [[1, 2], [[None, 1]]]])
def test_what_a_browser_sends_instead_of_intervals_selects_all(given: object):
    assert ranges_of(AXES, given) == {}


def test_ranges_are_found_again_by_their_address():
    ranges = {"lr": [0.01, None], "optimizer": ["sgd"]}
    assert ranges_in(address_of(ranges), AXES) == ranges
    assert address_of({}) == ""


@pytest.mark.parametrize(
    "text",
    ["", "x", "[1]", '{"lr": 1}', '{"lr": ["a", 1]}', '{"lr": [NaN, 1]}', '{"optimizer": [1]}', '{"gone": [1, 2]}'],
)
def test_an_address_that_fits_no_axis_selects_all(text: str):
    assert ranges_in(text, AXES) == {}
