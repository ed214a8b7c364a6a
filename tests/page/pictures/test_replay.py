"""The picture of replay: items under their capacity, samples per insert beside the limiter's target."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.replay import replay
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, EVIL, LIGHT, assert_plain


def point(table: str, seconds: float, size: int, ratio: float | None) -> dict[str, Any]:
    return {"table": table, "seconds": seconds, "size": size, "samples_per_insert": ratio}


DATA: dict[str, Any] = {
    "cursor": 3,
    "points": [point("replay", 1.0, 10, None), point(EVIL, 1.0, 5, 1.0), point("replay", 2.0, 20, 7.5)],
    "tables": {"replay": {"max_size": 100, "target": 8.0}, EVIL: {"max_size": 50, "target": None}},
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_each_table_has_a_line_above_and_below(style: Style) -> None:
    option = replay(DATA, style)
    assert_plain(option)
    sizes, ratios, others, _ = option["series"]
    assert sizes["data"] == [[1.0, 10], [2.0, 20]] and sizes["xAxisIndex"] == 0
    assert ratios["data"] == [[1.0, None], [2.0, 7.5]] and ratios["xAxisIndex"] == 1
    assert others["name"] == EVIL and others["data"] == [[1.0, 5]]


def test_capacity_and_target_are_levels_within_the_axes() -> None:
    option = replay(DATA, LIGHT)
    sizes, ratios, _, free = option["series"]
    assert sizes["markLine"]["data"] == [{"yAxis": 100}] and ratios["markLine"]["data"] == [{"yAxis": 8.0}]
    assert "markLine" not in free
    assert option["yAxis"][0]["max"] == 120 and option["yAxis"][1]["max"] == 9.2


def test_before_somebody_looked_there_is_nothing() -> None:
    assert replay({"points": [], "tables": {}}, LIGHT) == {}
