"""The picture of trials: their curves, the best one, and the rungs at which they are compared."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.trials import trials
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, EVIL, LIGHT, assert_plain, series


def trial(number: int, state: str, best: float | None, *points: list[float]) -> dict[str, Any]:
    return {"number": number, "state": state, "best": best, "curve": list(points)}


DATA: dict[str, Any] = {
    "metric": EVIL,
    "mode": "min",
    "trials": [
        trial(0, "paused", 3.0, [1, 3.0]),
        trial(1, "running", 2.0, [1, 4.0], [2, 2.0]),
        trial(2, "failed", None),
        trial(3, "running", 5.0, [1, 5.0]),
    ],
    "rungs": [
        {"bracket": 0, "budget": 1, "entered": 3, "promotable": 1, "promoted": 1},
        {"bracket": 1, "budget": 1, "entered": 2, "promotable": 1, "promoted": 1},
        {"bracket": 0, "budget": 3, "entered": 0, "promotable": 0, "promoted": 0},
    ],
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_curves_have_the_values_of_trials_and_the_best_is_named(style: Style) -> None:
    option = trials(DATA, style)
    assert_plain(option)
    assert series(option, "best: trial 1")["data"] == [[1, 4.0, 1], [2, 2.0, 1]]
    assert series(option, "paused")["data"] == [[1, 3.0, 0]] and len(option["series"]) == 3
    assert option["yAxis"]["name"] == EVIL and option["xAxis"]["min"] == 0


def test_rungs_of_all_brackets_with_one_budget_are_one_line() -> None:
    marks = trials(DATA, LIGHT)["series"][0]["markLine"]["data"]
    assert [(mark["xAxis"], mark["label"]["formatter"]) for mark in marks] == [(1, "5 → 2")]


def test_a_wide_range_of_steps_is_logarithmic() -> None:
    option = trials(DATA | {"trials": [trial(0, "running", 1.0, [1, 3.0], [100, 1.0])]}, LIGHT)
    assert option["xAxis"]["type"] == "log" and "min" not in option["xAxis"]


def test_a_curve_that_diverges_leaves_the_axis_at_a_mark() -> None:
    calm = [trial(n, "done", 1.0, [1, 2.0 + n], [2, 1.0 + n]) for n in range(4)]
    option = trials(DATA | {"trials": [*calm, trial(4, "failed", 9.0, [1, 9.0], [2, 1e9])]}, LIGHT)
    assert_plain(option)
    assert series(option, "beyond the axis")["data"] == [
        {"name": "trial 4: 1e+09", "value": [2, option["yAxis"]["max"]]}
    ]
    assert [2, 1e9, 4] in series(option, "failed")["data"], "the curve itself is whole"


def test_before_the_first_report_there_is_nothing() -> None:
    assert trials(DATA | {"trials": [trial(2, "failed", None)]}, LIGHT) == {}
