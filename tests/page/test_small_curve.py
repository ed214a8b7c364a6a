from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

from ropewalk.page.small_curve import small_curve


def points(svg: str) -> list[tuple[float, float]]:
    pairs = re.findall(r"([\d.]+),([\d.]+)", ElementTree.fromstring(svg).findall("polyline")[0].attrib["points"])
    return [(float(x), float(y)) for x, y in pairs]


def test_a_curve_spans_the_width_and_its_greatest_value_the_height():
    assert points(small_curve([0, 5, 10], "#000", 100, 24)) == [(0, 22), (50, 12), (100, 2)]


def test_a_curve_of_zeros_lies_at_the_bottom():
    assert points(small_curve([0, 0], "#000", 100, 24)) == [(0, 22), (100, 22)]


def test_values_that_are_not_finite_are_left_out():
    assert points(small_curve([1, math.nan, math.inf, 1], "#000", 100, 24)) == [(0, 2), (100, 2)]


def test_fewer_than_two_values_are_no_curve():
    assert small_curve([3.0], "#000") == small_curve([], "#000") == ""
