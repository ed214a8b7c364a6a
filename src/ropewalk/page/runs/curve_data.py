"""The data of curves for their pictures: smoothed, cut to the part that is shown, and decimated to what a screen shows.

A chart of a million points gets a thousand: of each bucket of consecutive points the least and the greatest. When a
part is zoomed into, that part is decimated anew, so that every point is seen in the end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.tracking.store.blocks import Points, joined
from ropewalk.tracking.store.decimation import decimated
from ropewalk.tracking.store.rows import SeriesRow

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_MOST_KEPT = 4_000_000
"""Points that are kept in memory, 24 bytes each."""
_RANGE = 200.0
"""How far the logarithm of weights may go within one block of `smoothed`, in which they are summed."""
_UNITS = ((2 * 86_400.0, 86_400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))

SeriesName = tuple[str, str]
"""Group and name of a metric."""


@dataclass(frozen=True, slots=True)
class CurveView:
    """How curves are shown.

    Attributes:
        smoothing: weight of what was before in the exponential moving average, from 0 (none) to below 1.
        x: "step" or "time", since the start of each run.
        log_x: whether the x axis is logarithmic.
        log_y: whether the y axis is.
    """

    smoothing: float = 0.0
    x: str = "step"
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class CurveRun:
    """A run whose curves are drawn.

    Attributes:
        id: of the run.
        name: shown in legends.
        started: seconds since the epoch, at which its time begins.
        color: index of its colour.
    """

    id: str
    name: str
    started: float
    color: int


class CurveReader:
    """Reads points from a store, and keeps those that were read last; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, str], tuple[int, Points]] = OrderedDict()

    def points(self, store: RunStore, run: str, series: SeriesRow) -> Points:
        """Return all points of a series; if it has more of them now, those are read."""
        key = (run, series.group, series.name)
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] == series.count:
                self._kept.move_to_end(key)
                return found[1]
        if found is not None and found[0] < series.count:
            points = joined(found[1], store.points(run, series.name, series.group, after=len(found[1])))
        else:
            points = store.points(run, series.name, series.group)
        with self._lock:
            self._kept[key] = (series.count, points)
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(len(points) for _, points in self._kept.values()) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return points

    def chart(
        self,
        store: RunStore,
        runs: list[tuple[CurveRun, SeriesRow]],
        view: CurveView,
        window: tuple[float, float] | None,
        max_points: int,
    ) -> dict[str, Any]:
        """Return the data of one chart; see `pictures.curves`.

        Args:
            store: the store.
            runs: the runs that have the metric, each with its series.
            view: how they are shown.
            window: the part of the x axis that is shown, in steps or seconds; None: the whole.
            max_points: how many points of each run to draw at most.

        Returns:
            The data; `unit` has the steps or seconds of a unit of the x axis.
        """
        read = [(run, _positions(self.points(store, run.id, series), run, view)) for run, series in runs]
        first = min((x[0].min() for _, x in read if len(x[0])), default=0.0)
        last = max((x[0].max() for _, x in read if len(x[0])), default=0.0)
        unit, word = _unit(float(last - first)) if view.x == "time" else (1.0, "")
        whole = (float(first / unit), float(last / unit))
        part = None if window is None else (window[0] / unit, window[1] / unit)
        lines: list[dict[str, Any]] = []
        for run, (x, values) in read:
            shown = line(x / unit, values, view.smoothing, part, max_points)
            lines.append({"name": run.name, "color": run.color, **shown})
        x_name = f"time ({word})" if word else "step"
        return {"metric": runs[0][1].name, "x": x_name, "unit": unit, "log_x": view.log_x, "log_y": view.log_y,
                "range": whole if whole[0] < whole[1] else None, "lines": lines}  # fmt: skip


def line(
    x: NDArray[np.float64],
    values: NDArray[np.float64],
    smoothing: float,
    window: tuple[float, float] | None,
    max_points: int,
) -> dict[str, Any]:
    """Return the points of one line, and those before they were smoothed.

    Args:
        x: positions of the points, shape (n,).
        values: their values, shape (n,).
        smoothing: weight of what was before; 0: no smoothing.
        window: the part of the x axis that is shown.
        max_points: how many points to return at most.

    Returns:
        `{"points": [[x, y], ...], "raw": [[x, y], ...] or None}`.
    """
    smooth = smoothed(values, smoothing) if smoothing > 0 else None
    if window is not None:
        first, last = np.searchsorted(x, window[0], "left"), np.searchsorted(x, window[1], "right")
        # One point more on each side, so that lines go on to the edge, even of a part between two points.
        is_beyond = last == 0 or first == len(x)
        chosen = slice(0, 0) if is_beyond else slice(max(0, int(first) - 1), int(last) + 1)
        x, values = x[chosen], values[chosen]
        smooth = None if smooth is None else smooth[chosen]
    if smooth is None:
        return {"points": _drawn(x, values, max_points), "raw": None}
    return {"points": _drawn(x, smooth, max_points), "raw": _drawn(x, values, max_points)}


def smoothed(values: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return the exponential moving average with bias correction: Kingma, Ba 2014, Adam, algorithm 1.

    m_t = weight * m_(t-1) + (1 - weight) * value_t, divided by 1 - weight^t. A value that is not finite is skipped: the
    average stays undefined there, and goes on after it.

    Args:
        values: shape (n,).
        weight: from 0 to below 1.
    """
    result = np.full(len(values), np.nan)
    is_known = np.isfinite(values)
    known = values[is_known]
    if not len(known) or not 0 < weight < 1:
        return values.copy()
    length = max(1, int(_RANGE / -np.log(weight)))
    averages, before = np.empty(len(known)), 0.0
    for start in range(0, len(known), length):
        part = known[start : start + length]
        ages = np.arange(1, len(part) + 1, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.cumsum(part * weight**-ages) * (1 - weight)
        averages[start : start + len(part)] = (sums + before) * weight**ages
        before = float(averages[start + len(part) - 1])
    counts = np.arange(1, len(known) + 1, dtype=np.float64)
    result[is_known] = averages / -np.expm1(counts * np.log(weight))
    return result


def _positions(points: Points, run: CurveRun, view: CurveView) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if view.x == "time":
        return points.times - run.started, points.values
    kept = effective(points.steps)
    return points.steps[kept], points.values[kept]


def effective(steps: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Choose the points that count: those that were not done again from an earlier step after a death or a return.

    Args:
        steps: in the order in which they were logged, shape (n,).

    Returns:
        Whether each point counts, shape (n,); the steps of those that do never decrease.
    """
    returns = np.flatnonzero(np.diff(steps) < 0) + 1  # where a later attempt begins, with its least step
    if not len(returns):
        return np.ones(len(steps), bool)
    least = np.append(np.minimum.accumulate(steps[returns][::-1])[::-1], np.inf)
    return steps < least[np.searchsorted(returns, np.arange(len(steps)), side="right")]


def _drawn(x: NDArray[np.float64], values: NDArray[np.float64], max_points: int) -> list[list[float]]:
    chosen = decimated(values, max_points)
    return np.column_stack([x[chosen], values[chosen]]).tolist()


def _unit(span_s: float) -> tuple[float, str]:
    return next((unit, word) for least, unit, word in _UNITS if span_s >= least)


__all__ = ["CurveReader", "CurveRun", "CurveView", "SeriesName", "effective", "line", "smoothed"]
