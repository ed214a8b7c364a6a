"""The picture of the fitness: bands between quartiles and extremes, whose numbers are those of the data."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.fitness import fitness, thinned
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, LIGHT, assert_plain, series

DATA: dict[str, Any] = {
    "cursor": 2,
    "generation": [1, 2],
    "evaluations": [8, 16],
    "worst": [-9.0, None],
    "lower_quartile": [-5.0, -4.0],
    "median": [-3.0, -2.0],
    "upper_quartile": [-2.0, -1.0],
    "best": [-1.0, 0.5],
    "mean": [-3.1, -2.1],
    "best_so_far": [-1.0, 0.5],
    "test": [None, 0.1],
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_lines_have_the_numbers_of_the_data(style: Style) -> None:
    option = fitness(DATA, style)
    assert_plain(option)
    assert series(option, "median")["data"] == [[1, -3.0], [2, -2.0]]
    assert series(option, "best so far")["data"] == [[1, -1.0], [2, 0.5]]
    assert series(option, "test")["data"] == [[1, None], [2, 0.1]]
    assert option["xAxis"]["name"] == "generation" and option["yAxis"]["name"] == "fitness"


def test_a_band_rises_from_the_lower_to_the_upper_line_and_no_tooltip_shows_the_difference() -> None:
    low, rise = (each for each in fitness(DATA, LIGHT)["series"] if each["name"] == "quartiles")
    assert low["data"] == [[1, -5.0], [2, -4.0]] and rise["data"] == [[1, 3.0], [2, 3.0]]
    assert low["stack"] == rise["stack"] and not rise["tooltip"]["show"]
    whole = [each for each in fitness(DATA, LIGHT)["series"] if each["name"] == "worst to best"]
    assert whole[1]["data"] == [[1, 8.0], [2, None]]


def test_a_run_without_tests_has_no_line_for_them() -> None:
    names = {each["name"] for each in fitness(DATA | {"test": [None, None]}, LIGHT)["series"]}
    assert "test" not in names and "median" in names


def test_before_the_first_generation_there_is_nothing() -> None:
    assert fitness({name: 0 if name == "cursor" else [] for name in DATA}, LIGHT) == {}


def test_a_point_stands_for_several_generations_with_the_worst_and_the_best_of_them() -> None:
    columns = {
        "generation": [1, 2, 3, 4, 5],
        "worst": [-1.0, -9.0, -2.0, None, -3.0],
        "best": [1.0, 0.0, 7.0, 2.0, 3.0],
        "median": [0.1, 0.2, 0.3, 0.123456789, 0.5],
    }
    assert thinned({"cursor": 5, **columns}, 3) == {
        "generation": [1, 3, 5], "worst": [-1.0, -9.0, -3.0], "best": [1.0, 7.0, 3.0], "median": [0.1, 0.3, 0.5],
    }  # fmt: skip
    assert thinned(columns, 5) == {**columns, "median": [0.1, 0.2, 0.3, 0.123457, 0.5]}
