"""The pictures of a search."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ropewalk.page.pictures.history import history
from ropewalk.page.pictures.importance import importance
from ropewalk.page.pictures.parallel import ABSENT, parallel
from ropewalk.page.pictures.pareto import pareto
from ropewalk.page.pictures.rungs import rungs
from ropewalk.page.style import Style

STYLE = Style()


def series(option: dict[str, Any], name: str) -> Any:
    return next(one["data"] for one in option["series"] if one.get("name") == name)


# --- history ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "best"), [("max", [1, 3, 3]), ("min", [1, 1, 0])])
def test_the_best_so_far_never_becomes_worse(mode: str, best: list[int]) -> None:
    trials = [[0, 1, "done"], [1, 3, "done"], [2, None, "failed"], [3, math.nan, "done"], [4, 0, "running"]]
    option = history({"metric": "m", "mode": mode, "trials": trials}, STYLE)
    assert [value for _, value in series(option, "best so far")] == best
    assert series(option, "ended") == [[0, 1], [1, 3]] and series(option, "under way") == [[4, 0]]


def test_a_history_without_values_is_empty() -> None:
    assert history({"metric": "m", "mode": "max", "trials": [[0, None, "running"]]}, STYLE) == {}


# --- configurations ---------------------------------------------------------------------------------------------------


def test_axes_are_categories_numbers_or_logarithmic() -> None:
    rates = [1e-4, 1e-3, 1e-2, 1e-1]
    rows = [[kind, rate, depth, 0.1 * depth] for kind, rate, depth in zip("abab", rates, (1, 2, 3, 4), strict=True)]
    option = parallel({"metric": "acc", "names": ["kind", "rate", "depth"], "rows": rows}, STYLE)
    assert [axis["type"] for axis in option["parallelAxis"]] == ["category", "log", "value", "value"]
    rate = option["parallelAxis"][1]
    assert rate["min"] <= 1e-4 and rate["max"] >= 1e-1
    assert option["visualMap"]["dimension"] == 3 and len(option["series"][0]["data"]) == 4
    assert option["visualMap"]["text"] == ["0.4", "0.1"]  # what the ends of the colours mean


def test_a_number_that_is_absent_leaves_its_axis_to_numbers() -> None:
    rows = [["sgd", 0.9, 1.0], ["adam", ABSENT, 2.0], ["sgd", 0.05, 3.0]]
    option = parallel({"metric": "acc", "names": ["kind", "momentum"], "rows": rows}, STYLE)
    assert [axis["type"] for axis in option["parallelAxis"]] == ["category", "value", "value"]
    assert [row[1] for row in option["series"][0]["data"]] == [0.9, ABSENT, 0.05]


def test_trials_without_a_value_have_no_line() -> None:
    rows = [["a", 1.0], ["b", None], ["c", math.nan]]
    option = parallel({"metric": "acc", "names": ["kind"], "rows": rows}, STYLE)
    assert option["series"][0]["data"] == [["a", 1.0]]
    assert option["visualMap"]["min"] < option["visualMap"]["max"]  # all values are equal
    assert parallel({"metric": "acc", "names": [], "rows": []}, STYLE) == {}


# --- importance -------------------------------------------------------------------------------------------------------


def test_the_most_important_hyperparameter_is_on_top() -> None:
    option = importance({"shares": {"a": 0.2, "b": 0.7, "c": 0.1}}, STYLE)
    assert option["yAxis"]["data"] == ["b", "a", "c"] and option["yAxis"]["inverse"]
    assert importance({"shares": {}}, STYLE) == {}


# --- rungs ------------------------------------------------------------------------------------------------------------


def test_who_was_promoted_is_seen_on_its_rung() -> None:
    found = [
        {"bracket": 0, "budget": 1.0, "trials": [[0, 0.5, True], [1, 0.1, False], [2, None, False]]},
        {"bracket": 0, "budget": 3.0, "trials": [[0, 0.9, False]]},
    ]
    option = rungs({"metric": "acc", "mode": "max", "rungs": found}, STYLE)
    assert option["xAxis"]["data"] == ["step 1\n1 of 3", "step 3\n0 of 1"]
    assert [point["value"] for point in series(option, "promoted")] == [[0, 0.5, 0]]
    assert [point["value"] for point in series(option, "not promoted")] == [[0, 0.1, 1], [1, 0.9, 0]]
    assert option["series"][0]["data"] == [{"coords": [[0, 0.5], [1, 0.9]]}]


def test_several_brackets_are_named() -> None:
    found = [{"bracket": number, "budget": 1.0, "trials": [[number, 0.5, False]]} for number in (0, 1)]
    labels = rungs({"metric": "acc", "mode": "max", "rungs": found}, STYLE)["xAxis"]["data"]
    assert labels[1].startswith("bracket 1, ")


def test_a_trial_that_diverged_is_a_mark_at_the_end_of_the_axis() -> None:
    standing = [[number, 0.1 * number, False] for number in range(10)]
    found: list[Any] = [{"bracket": 0, "budget": 1.0, "trials": [*standing, [10, 1e9, False]]}]
    option = rungs({"metric": "loss", "mode": "min", "rungs": found}, STYLE)
    assert 0.9 < (end := option["yAxis"]["max"]) < 1 and "min" not in option["yAxis"]
    assert series(option, "beyond the axis") == [{"name": "trial 10: 1e+09", "value": [0, end]}]
    assert "beyond the axis" in option["legend"]["data"]
    values = [-1.0, -0.9, -0.7, -0.8, -1e9, -0.5, -0.2, -0.4]
    found = [[number, value, "done"] for number, value in enumerate(values)]
    option = history({"metric": "m", "mode": "max", "trials": found}, STYLE)
    assert series(option, "beyond the axis") == [{"name": "trial 4: -1e+09", "value": [4, option["yAxis"]["min"]]}]


# --- Pareto front -----------------------------------------------------------------------------------------------------


def test_the_front_is_a_line_and_the_others_are_points() -> None:
    data = {"metrics": ["a", "b"], "trials": [[0, 2.0, 1.0], [1, 1.0, 2.0], [2, 0.5, 0.5]], "front": [0, 1]}
    option = pareto(data, STYLE)
    assert [point["value"] for point in series(option, "Pareto front")] == [[1.0, 2.0], [2.0, 1.0]]
    assert [point["name"] for point in series(option, "other trials")] == ["trial 2"]


# --- all of them ------------------------------------------------------------------------------------------------------


def test_names_of_users_are_data_in_all_pictures() -> None:
    """A key that begins with a colon is a program for NiceGUI, and `rich` or a formatter would make HTML of text."""
    bad = ":x\x1b[2J<img onerror=1>"
    rung = {"bracket": 0, "budget": 1.0, "trials": [[0, 1.0, True]]}
    options = [
        history({"metric": bad, "mode": "max", "trials": [[0, 1.0, "done"]]}, STYLE),
        parallel({"metric": bad, "names": [bad], "rows": [[bad, 1.0]]}, STYLE),
        importance({"shares": {bad: 1.0}}, STYLE),
        rungs({"metric": bad, "mode": "max", "rungs": [rung]}, STYLE),
        pareto({"metrics": [bad, bad], "trials": [[0, 1.0, 2.0]], "front": [0]}, STYLE),
    ]
    for option in options:
        text = json.dumps(option, allow_nan=False)
        assert "\\u001b" not in text and '":x' not in text.replace(': ":x', "").replace('[":x', "").replace(', ":x', "")
        assert "formatter" not in text
