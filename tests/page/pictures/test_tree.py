"""The picture of open-ended environments: each below its parent, in the colour of its best score."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.tree import tree
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, EVIL, LIGHT, assert_plain, series


def node(number: int, parent: int | None, born: int, **more: Any) -> dict[str, Any]:
    facts = {"label": f"env {number}", "retired": None, "best": float(number), "score": None}
    return {"number": number, "parent": parent, "born": born, **facts, **more}


DATA: dict[str, Any] = {
    "generation": 9,
    "environments": [node(0, None, 0, retired=6), node(1, 0, 2, label=EVIL), node(2, 0, 4, best=None), node(3, 1, 5)],
    "transfers": [
        {"generation": 5, "source": 0, "target": 2, "fine_tuned": True},
        {"generation": 6, "source": 1, "target": 0, "fine_tuned": False},
    ],
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_environments_are_below_their_parents_after_younger_siblings(style: Style) -> None:
    option = tree(DATA, style)
    assert_plain(option)
    assert option["yAxis"]["data"] == ["env 0", "env 2", EVIL[:24], "env 3"]
    lives = [each["coords"] for each in series(option, "environment")["data"]]
    assert lives == [[[0, 0], [6, 0]], [[2, 2], [9, 2]], [[4, 1], [9, 1]], [[5, 3], [9, 3]]]
    assert [each["coords"] for each in series(option, "births")["data"]] == [
        [[2, 0], [2, 2]],
        [[4, 0], [4, 1]],
        [[5, 2], [5, 3]],
    ]


def test_the_best_score_is_a_colour_and_no_score_is_grey() -> None:
    lines = series(tree(DATA, LIGHT), "environment")["data"]
    colors = [each["lineStyle"]["color"] for each in lines]
    assert colors[0] == "#440154" and colors[3] == "#fde725" and colors[2] == LIGHT.muted


def test_agents_move_from_row_to_row() -> None:
    option = tree(DATA, LIGHT)
    assert series(option, "agent moved after a step")["data"][0]["coords"] == [[5, 0], [5, 1]]
    assert series(option, "agent moved as it was")["data"][0]["coords"] == [[6, 2], [6, 0]]
    assert series(option, "archived")["data"] == [[6, 0]]


def test_of_many_environments_rows_are_numbered() -> None:
    option = tree({**DATA, "transfers": [], "environments": [node(number, None, 0) for number in range(40)]}, LIGHT)
    assert option["yAxis"]["data"][:2] == ["0", "1"] and not option["yAxis"]["axisLabel"]["show"]


def test_descendants_of_the_youngest_sibling_come_before_its_elders() -> None:
    nodes = [node(0, None, 0), node(1, 0, 2), node(2, 0, 4), node(3, 2, 5)]
    option = tree({**DATA, "transfers": [], "environments": nodes}, LIGHT)
    assert option["yAxis"]["data"] == ["env 0", "env 2", "env 3", "env 1"]
