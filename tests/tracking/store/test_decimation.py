"""Curves with fewer points look the same."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ropewalk.tracking.store.decimation import decimated


def check(array: NDArray[np.float64], max_points: int) -> None:
    chosen = decimated(array, max_points)
    assert len(chosen) <= max_points or len(chosen) == len(array)
    assert (np.diff(chosen) > 0).all()
    if len(array):
        assert (chosen[0], chosen[-1]) == (0, len(array) - 1)
    kept = array[chosen]
    assert np.isnan(kept).any() == np.isnan(array).any()
    known = array[~np.isnan(array)]
    if len(known):
        assert (np.nanmin(kept), np.nanmax(kept)) == (known.min(), known.max())


@pytest.mark.parametrize("share_of_nan", [0, 0.1, 0.9, 1])
def test_points_are_few_in_order_and_keep_extremes_ends_and_gaps(share_of_nan: float) -> None:
    rng = np.random.default_rng(0)
    for num in range(45):
        array = rng.choice([-np.inf, -1.0, 0.0, 1.0, 2.0, np.inf], num)
        array[rng.random(num) < share_of_nan] = np.nan
        for max_points in range(5, 45, 1 + num % 3):
            check(array, max_points)


def test_a_short_curve_stays_as_it_is() -> None:
    assert decimated(np.zeros(5), 5).tolist() == [0, 1, 2, 3, 4]
    assert decimated(np.zeros(0), 5).tolist() == []


def test_each_bucket_keeps_its_own_extremes() -> None:
    values = np.zeros(100)
    values[[10, 35, 60, 85]] = 1
    values[[11, 36, 61, 86]] = -1
    assert decimated(values, 10).tolist() == [0, 10, 11, 35, 36, 60, 61, 85, 86, 99]


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="max_points must be at least 5, not 4"):
        decimated(np.zeros(3), 4)
