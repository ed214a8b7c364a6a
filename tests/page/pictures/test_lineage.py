"""The picture of a lineage: a lane for each member, an arrow for each copy, the way of the best state."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.lineage import lineage
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, LIGHT, assert_plain, series


def copy(member: int, donor: int, reason: str = "exploit") -> dict[str, Any]:
    steps = {"step": 10, "donor_step": 12, "interval": 1, "score": 1.0, "donor_score": 2.0}
    return {"member": member, "donor": donor, "reason": reason, "why": "", "after": {}, **steps}


DATA: dict[str, Any] = {
    "cursor": 1,
    "left": 0,
    "copies": [copy(0, 1)],
    "members": {
        "0": {"step": 30, "score": 5.0, "intervals": 3, "origin": 1},
        "1": {"step": 20, "score": 2.0, "intervals": 2, "origin": 1},
        "10": {"step": 0, "score": None, "intervals": 0, "origin": 10},
    },
    "best": {"path": [[1, 0, 12], [0, 12, 30]]},
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_lanes_arrows_and_the_best_way_are_where_the_data_says(style: Style) -> None:
    option = lineage(DATA, style)
    assert_plain(option)
    assert option["yAxis"]["data"] == ["0", "1", "10"]
    assert [each["coords"] for each in series(option, "trained")["data"]] == [
        [[0, "0"], [30, "0"]],
        [[0, "1"], [20, "1"]],
    ]
    assert series(option, "copied a better member")["data"][0]["coords"] == [[12, "1"], [12, "0"]]
    assert [each["coords"] for each in series(option, "way of the best state")["data"]] == [
        [[0, "1"], [12, "1"]],
        [[12, "0"], [30, "0"]],
    ]
    assert option["xAxis"]["max"] == 30


def test_names_of_many_members_do_not_overlap() -> None:
    members = {str(number): DATA["members"]["0"] for number in range(40)}
    assert lineage(DATA | {"members": members}, LIGHT)["yAxis"]["axisLabel"]["interval"] == "auto"
    assert lineage(DATA, LIGHT)["yAxis"]["axisLabel"]["interval"] == 0


def test_the_number_of_ancestors_that_are_left_is_told() -> None:
    assert lineage(DATA, LIGHT)["title"]["text"].startswith("2 of 3 members")


def test_a_lost_state_is_marked_and_is_no_better_member() -> None:
    option = lineage(DATA | {"copies": [copy(0, 1, "lost"), copy(1, -1, "restart")]}, LIGHT)
    assert_plain(option)
    assert series(option, "state lost")["data"] == [[10, "0"], [10, "1"]]
    assert not any(each["data"] for each in option["series"] if each["name"] == "copied a better member")


def test_before_anything_was_trained_there_is_nothing() -> None:
    members = {"0": {"step": 0, "score": None, "intervals": 0, "origin": 0}}
    assert lineage({"members": members, "copies": [], "best": {"path": []}}, LIGHT) == {}


def test_of_many_copies_one_of_a_number_is_drawn_with_the_last() -> None:
    many = [{**copy(0, 1), "step": step, "donor_step": step} for step in range(1500)]
    option = lineage(DATA | {"copies": many}, LIGHT)
    arrows = series(option, "copied a better member")["data"]
    assert len(arrows) == 500 and arrows[-1]["coords"][0][0] == 1499
    assert option["title"]["text"].endswith("one of 3 copies is drawn")
