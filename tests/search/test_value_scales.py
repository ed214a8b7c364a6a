"""Which hyperparameters get a logarithmic axis, and which values of a metric an axis leaves out."""

from __future__ import annotations

import math

import pytest

from ropewalk.search.value_scales import is_logarithmic, shown_range


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e-4, 1e-3, 1e-2, 1e-1], True),
        ([0.0, 1e-3, 1.0], False),
        ([-1.0, 1.0, 100.0], False),
        ([1.0, 2.0, 3.0], False),
        ([0.01, 0.4, 0.5, 0.9], False),  # uniform down to almost 0
        ([], False),
    ],
)
def test_powers_are_logarithmic(values: list[float], expected: bool) -> None:
    assert is_logarithmic(values) is expected


@pytest.mark.parametrize(
    ("values", "mode", "expected"),
    [
        ([*range(20), 1e9], "min", (0, 19)),
        ([*range(20), 1e9, 1e12, math.inf, math.nan], "min", (0, 19)),
        ([*range(20), -1e9], "max", (0, 19)),
        ([*range(20), -1e9], "min", (-1e9, 19)),  # the best one is always shown
        ([*range(20), 60], "min", (0, 60)),  # far, yet the others have a third of the axis
        ([1.0, 2.0, 3.0, 1e9], "min", (1.0, 3.0)),
        ([1.0, 1e9], "min", (1.0, 1e9)),  # of two, none is usual
        ([5.0] * 9 + [1e9], "min", (5.0, 1e9)),  # nothing to see among the others
        ([3.0], "max", (3.0, 3.0)),
    ],
)
def test_values_that_are_far_worse_than_most_are_left_out(
    values: list[float], mode: str, expected: tuple[float, float]
) -> None:
    assert shown_range(values, mode) == expected


def test_a_range_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a range needs a value that is finite"):
        shown_range([math.nan], "max")
