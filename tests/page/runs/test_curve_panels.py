"""The zoom of a chart in the address of its page."""

from __future__ import annotations

import pytest

from ropewalk.page.runs.curve_panels import window_of, zoom_entry


def test_each_metric_has_an_entry_of_its_own():
    assert zoom_entry(("", "loss")) != zoom_entry(("eval", "loss"))


def test_a_part_of_the_axis_is_read():
    assert window_of("10:20.5") == (10.0, 20.5)
    assert window_of("-3:1e6") == (-3.0, 1e6)


@pytest.mark.parametrize("text", ["", ":", "1", "1:", "a:b", "20:10", "5:5", "nan:1", "0:inf"])
def test_what_names_no_part_is_none(text: str):
    assert window_of(text) is None
