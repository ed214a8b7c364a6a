"""The picture of throughput: three rows over one time axis, and which side waits."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.throughput import throughput
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, EVIL, LIGHT, assert_plain, series

DATA: dict[str, Any] = {
    "cursor": 9,
    "seconds": [1.0, 2.0],
    "env_steps_per_s": [900.0, 1000.0],
    "updates_per_s": [3.0, 4.0],
    "samples_per_s": [192.0, 256.0],
    "bound": EVIL,
}


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_each_row_has_the_rates_of_the_data(style: Style) -> None:
    option = throughput(DATA, style)
    assert_plain(option)
    assert series(option, "env steps/s")["data"] == [[1.0, 900.0], [2.0, 1000.0]]
    assert series(option, "updates/s")["data"] == [[1.0, 3.0], [2.0, 4.0]]
    assert series(option, "samples/s")["data"] == [[1.0, 192.0], [2.0, 256.0]]
    assert option["title"]["text"] == EVIL and option["xAxis"][-1]["name"] == "time since the start (s)"
    assert {axis["min"] for axis in option["yAxis"]} == {0}


def test_before_the_second_point_there_is_nothing() -> None:
    assert throughput(DATA | {"seconds": []}, LIGHT) == {}
