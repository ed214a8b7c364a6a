"""Scales of colours: a value is mixed from its neighbours, and what is unknown is grey."""

from __future__ import annotations

import pytest

from ropewalk.page.pictures.bands import band, rows_of_grids, shade, shades
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, LIGHT


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_the_ends_of_a_scale_are_the_lowest_and_the_highest_value(style: Style) -> None:
    scale = shades(style)
    assert shade(2.0, 2.0, 4.0, style) == scale[0] and shade(4.0, 2.0, 4.0, style) == scale[-1]
    assert shade(9.0, 2.0, 4.0, style) == scale[-1] and shade(-9.0, 2.0, 4.0, style) == scale[0]
    assert shade(None, 2.0, 4.0, style) == style.muted and shade(3.0, 3.0, 3.0, style) == scale[-1]


def test_between_two_colours_a_value_is_mixed() -> None:
    first, second = shades(LIGHT)[:2]
    mixed = shade(0.5 / 7, 0.0, 1.0, LIGHT)
    assert first < mixed < second or second < mixed < first
    assert mixed == "#451a69"


def test_grids_are_below_each_other() -> None:
    first, second = rows_of_grids(2, top=10, height=50, gap=5)
    assert (first["top"], second["top"]) == (10, 65) and first["height"] == second["height"] == 50


def test_a_gap_of_either_line_is_a_gap_of_the_band() -> None:
    low, rise = band("b", [1, 2, 3], [0.0, None, 1.0], [2.0, 3.0, None], "#000", 0.5)
    assert low["data"] == [[1, 0.0], [2, None], [3, 1.0]] and rise["data"] == [[1, 2.0], [2, None], [3, None]]
