"""The picture of staleness: the share of each actor's blocks by lag."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.staleness import staleness
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, LIGHT, assert_plain

ACTOR = {"last": 1, "max": 9, "blocks": 4, "refused": 0, "lives": 1}
DATA: dict[str, Any] = {
    "unit": "updates",
    "edges": [0, 1, 2, 3, 5],
    "actors": [
        {"actor": 0, "counts": [3, 1, 0, 0, 0], "dropped": 0, **ACTOR},
        {"actor": 7, "counts": [0, 0, 0, 1, 1], "dropped": 1200, **ACTOR},
    ],
    "batches": {"mean": 2.25, "max": 9.0},
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_cells_are_shares_of_the_blocks_of_an_actor(style: Style) -> None:
    option = staleness(DATA, style)
    assert_plain(option)
    assert option["series"][0]["data"] == [[0, 0, 75.0], [1, 0, 25.0], [3, 1, 50.0], [4, 1, 50.0]]
    assert option["xAxis"]["data"] == ["0", "1", "2", "3–4", "5–8"] and option["yAxis"]["data"] == ["0", "7"]
    assert "2.2 updates" in option["title"]["text"] and "1,200 blocks dropped" in option["title"]["text"]


def test_in_lockstep_the_lag_of_batches_is_shown() -> None:
    option = staleness({**DATA, "unit": "rounds", "edges": [], "actors": []}, LIGHT)
    assert_plain(option)
    assert option["series"][0]["data"] == [2.25, 9.0] and "rounds" in option["xAxis"]["name"]


def test_before_the_first_batch_there_is_nothing() -> None:
    assert staleness({**DATA, "actors": [], "batches": {"mean": None, "max": None}}, LIGHT) == {}
