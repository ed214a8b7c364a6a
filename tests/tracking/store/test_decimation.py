"""Curves with fewer points look the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.tracking.store.decimation import decimated

VALUES = st.lists(st.floats(width=32) | st.sampled_from([math.nan, 0.0, 1.0]), max_size=80)


@given(values=VALUES, max_points=st.integers(5, 40))
def test_points_are_few_in_order_and_keep_extremes_ends_and_gaps(values: list[float], max_points: int) -> None:
    array = np.array(values, np.float64)
    chosen = decimated(array, max_points)
    assert len(chosen) <= max_points or len(chosen) == len(array)
    assert (np.diff(chosen) > 0).all()
    if values:
        assert (chosen[0], chosen[-1]) == (0, len(array) - 1)
    kept = array[chosen]
    assert np.isnan(kept).any() == np.isnan(array).any()
    known = array[~np.isnan(array)]
    if len(known):
        assert (np.nanmin(kept), np.nanmax(kept)) == (known.min(), known.max())


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
