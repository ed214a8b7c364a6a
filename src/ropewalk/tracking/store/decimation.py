"""Min-max decimation: a curve of a million points in a few thousand, which looks the same when drawn.

Points are divided into buckets of consecutive points, and of each bucket the least and the greatest value are kept, in
their order, so that no spike is lost, however narrow it is; and one NaN of each bucket, so that a gap stays visible.
The first and the last point are always kept. Averages would hide spikes, and every n-th point would miss them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_POINTS = 5
"""The first point, the last point, and of one bucket the least value, the greatest value and a NaN."""


def decimated(values: NDArray[np.float64], max_points: int) -> NDArray[np.int64]:
    """Choose the points to draw.

    Args:
        values: values of the points in their order, shape (n,).
        max_points: how many points to choose at most, at least 5.

    Returns:
        Indices of the chosen points, increasing; all of them if there are no more than `max_points`.

    Raises:
        ValueError: `max_points` is below 5.
    """
    if max_points < LEAST_POINTS:
        raise ValueError(f"max_points must be at least {LEAST_POINTS}, not {max_points}")
    num = len(values)
    if num <= max_points:
        return np.arange(num)
    is_nan = np.isnan(values)
    has_nan = bool(is_nan.any())
    num_buckets = (max_points - 2) // (3 if has_nan else 2)
    width = -(-num // num_buckets)
    # The last bucket repeats the last point up to its width, which changes neither extreme.
    table = np.pad(values, (0, num_buckets * width - num), mode="edge").reshape(num_buckets, width)
    starts = np.arange(num_buckets) * width
    chosen = [np.array([0, num - 1])]
    if has_nan:
        nans = np.isnan(table)
        chosen.append((starts + nans.argmax(axis=1))[nans.any(axis=1)])
        chosen.append(starts + np.where(nans, np.inf, table).argmin(axis=1))
        chosen.append(starts + np.where(nans, -np.inf, table).argmax(axis=1))
    else:
        chosen += [starts + table.argmin(axis=1), starts + table.argmax(axis=1)]
    return np.unique(np.minimum(np.concatenate(chosen), num - 1))
