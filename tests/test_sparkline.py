"""Curves that are one line of text high."""

from __future__ import annotations

import math

import pytest

from ropewalk.sparkline import sparkline

nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 5, ""),
        ([1.0], 5, "▄"),
        ([3.0, 3.0], 5, "▄▄"),
        ([0.0, 7.0], 5, "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 4, 4, 7.99, 7.99], 3, "▁▅█"),
        ([0.0, nan, 1.0], 3, "▁ █"),
        ([nan, 2.0, nan, 4.0], 2, "▁█"),
        ([nan, nan], 2, "  "),
        ([0.0, inf, -inf, 1.0], 4, "▁█▁█"),
        ([0, 0, 0, 4, 8, 8], 3, "▁▃█"),
        ([-1.7e308, 1.7e308], 2, "▁█"),
        ([1.7e308 * (2 * number / 7 - 1) for number in range(8)], 8, "▁▂▃▄▅▆▇█"),
        ([1.7e308, 1.7e308, 0.0, 0.0], 2, "█▁"),
        ([0.1] * 20, 3, "▄▄▄"),  # the mean of six is 0.09999999999999999: it was drawn as "▁██"
        ([5e-324, 0.0], 2, "█▁"),  # their halves are both 0: `ropewalk runs show` ended with ZeroDivisionError
    ],
)
def test_values_become_bars(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected
