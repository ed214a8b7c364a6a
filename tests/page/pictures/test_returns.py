"""The picture of returns: training as a line, evaluations in a band from their worst to their best episode."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.returns import returns
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, LIGHT, assert_plain, series

TRAINING, EVALUATION = "training, mean of 100 episodes", "evaluation, without exploration"


def evaluation(steps: int, mean: float) -> dict[str, Any]:
    return {"steps": steps, "mean": mean, "worst": mean - 2, "best": mean + 3, "episodes": 5}


DATA: dict[str, Any] = {
    "cursor": 3,
    "steps": [0, 100, 200],
    "seconds": [0.0, 1.0, 2.0],
    "score": [None, 10.0, 12.0],
    "episodes": [0, 5, 9],
    "evaluations": [evaluation(150, 20.0), evaluation(50, 15.0)],
    "total_steps": 1000,
    "stop_at": None,
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_lines_have_the_scores_over_steps_in_order(style: Style) -> None:
    option = returns(DATA, style)
    assert_plain(option)
    assert series(option, TRAINING)["data"] == [[100, 10.0], [200, 12.0]]
    assert series(option, EVALUATION)["data"] == [[50, 15.0], [150, 20.0]]
    low, rise = (each["data"] for each in option["series"] if each["name"] == "worst to best episode")
    assert low == [[50, 13.0], [150, 18.0]] and rise == [[50, 5.0], [150, 5.0]]


def test_the_score_that_ends_it_is_a_line() -> None:
    option = returns(DATA | {"stop_at": 475.0}, LIGHT)
    assert series(option, EVALUATION)["markLine"]["data"] == [{"yAxis": 475.0}]
    assert_plain(option)


def test_without_evaluations_there_is_training_alone() -> None:
    option = returns(DATA | {"evaluations": []}, LIGHT)
    assert [each["name"] for each in option["series"]] == [TRAINING]


def test_before_the_first_episode_has_ended_there_is_nothing() -> None:
    assert returns(DATA | {"score": [None, None, None], "evaluations": []}, LIGHT) == {}
