"""The picture of an archive: its cells are the bins of the data, on axes with the numbers of behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.archive import archive
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, EVIL, LIGHT, assert_plain

DATA: dict[str, Any] = {
    "kind": "grid",
    "axes": [
        {"name": EVIL, "low": -1.0, "high": 1.0, "bins": 4},
        {"name": "behaviour 1", "low": 0.0, "high": 6.0, "bins": 3},
    ],
    "values": [[0, 1, 2.5], [3, 2, -1.0]],
    "elites": 2,
    "niches": 12,
    "coverage": 2 / 12,
    "qd_score": 1.5,
    "best": 2.5,
    "folded": 0,
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_cells_have_the_fitness_of_their_elites(style: Style) -> None:
    option = archive(DATA, style)
    assert_plain(option)
    (cells,) = option["series"]
    assert cells["type"] == "heatmap" and cells["data"] == DATA["values"]
    assert (option["visualMap"]["min"], option["visualMap"]["max"]) == (-1.0, 2.5)
    assert option["title"]["text"] == "2 of 12 niches (17%), QD score 1.5"


def test_axes_have_as_many_bins_and_the_range_of_the_behaviour() -> None:
    bins, numbers = archive(DATA, LIGHT)["xAxis"]
    assert bins["data"] == ["-0.75", "-0.25", "0.25", "0.75"] and not bins["show"]
    assert (numbers["name"], numbers["min"], numbers["max"]) == (EVIL, -1.0, 1.0)
    assert archive(DATA, LIGHT)["yAxis"][1]["max"] == 6.0


def test_one_component_is_shown_as_bars() -> None:
    option = archive(DATA | {"axes": DATA["axes"][:1], "values": [[0, 0, 2.5]]}, LIGHT)
    assert_plain(option)
    assert option["series"][0]["type"] == "bar" and option["series"][0]["data"] == [[0, 2.5]]


def test_equal_fitnesses_have_a_scale_and_further_components_are_told_of() -> None:
    option = archive(DATA | {"values": [[0, 1, 2.5]], "folded": 3}, LIGHT)
    assert option["visualMap"]["max"] > option["visualMap"]["min"]
    assert "3 further components" in option["title"]["text"]


def test_an_empty_archive_shows_nothing_yet() -> None:
    assert archive(DATA | {"values": []}, LIGHT) == {}
