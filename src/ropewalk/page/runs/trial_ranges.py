"""Which trials are selected by ranges of their hyperparameters: what the fields and the brush of a picture share; pure.

{"lr": [0.001, None], "optimizer": ["adam", "sgd"]}     at least 0.001, and one of two
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.page.pictures.parallel import ABSENT, finite_in, kind_of, kinds_of

Ranges = dict[str, list[Any]]
"""By the name of an axis: least and most, None for no limit; or, of an axis with kinds, those that are selected."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the picture of configurations.

    Attributes:
        name: of the hyperparameter, or of the metric.
        kinds: the texts on it; None for an axis of numbers.
        least: the smallest number on it.
        most: the largest.
    """

    name: str
    kinds: tuple[str, ...] | None = None
    least: float = 0.0
    most: float = 0.0


def axes_of(data: Mapping[str, Any]) -> list[Axis]:
    """Return the axes of the data of `pictures.parallel`; none if there are no rows."""
    rows = cast("Sequence[Sequence[Any]]", data["rows"])
    if not rows:
        return []
    names = [*data["names"], data["metric"]]
    return [_axis(name, column) for name, column in zip(names, zip(*rows, strict=True), strict=True)]


def _axis(name: str, column: Sequence[Any]) -> Axis:
    if (kinds := kinds_of(column)) is not None:
        return Axis(name, tuple(kinds))
    numbers = finite_in(column)
    return Axis(name, None, min(numbers, default=0.0), max(numbers, default=0.0))


def is_selected(row: Sequence[Any], axes: Sequence[Axis], ranges: Ranges) -> bool:
    """Return whether the values of a row are in all ranges; those of axes that are not there do not count."""
    pairs = zip(row, axes, strict=True)
    return all(_is_in(value, axis, ranges[axis.name]) for value, axis in pairs if axis.name in ranges)


def _is_in(value: Any, axis: Axis, chosen: Sequence[Any]) -> bool:
    if axis.kinds is not None:
        return kind_of(value) in chosen
    least, most = chosen
    return value != ABSENT and (least is None or value >= least) and (most is None or value <= most)


def intervals_of(axes: Sequence[Axis], ranges: Ranges) -> list[list[list[float]]]:
    """Return the intervals of each axis as ECharts brushes them: numbers, or the places of kinds; [] for all."""
    return [_intervals(axis, ranges[axis.name]) if axis.name in ranges else [] for axis in axes]


def _intervals(axis: Axis, chosen: Sequence[Any]) -> list[list[float]]:
    if axis.kinds is not None:
        return [[at, at] for at, kind in enumerate(axis.kinds) if kind in chosen]
    least, most = chosen
    return [[axis.least if least is None else least, axis.most if most is None else most]]


def ranges_of(axes: Sequence[Axis], given: Any) -> Ranges:
    """Return the ranges that were brushed.

    Args:
        axes: the axes of the picture.
        given: from a browser: a list of intervals for each axis; what does not fit is left out.
    """
    ranges: Ranges = {}
    for axis, intervals in zip(axes, _list(given), strict=False):
        pairs = [_list(pair) for pair in _list(intervals)]
        found = [pair for pair in pairs if len(pair) == 2 and all(map(_is_finite, pair))]
        if found and axis.kinds is not None:
            ranges[axis.name] = [kind for at, kind in enumerate(axis.kinds)
                                 if any(least <= at <= most for least, most in found)]  # fmt: skip
        elif found:
            ranges[axis.name] = [float(f"{end:.4g}") for end in found[0]]
    return ranges


def _list(given: Any) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else []


def ranges_in(text: str, axes: Sequence[Axis]) -> Ranges:
    """Return the ranges that an entry of an address names, as `address_of` writes them; {} if it is none of ours."""
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    found = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return {axis.name: found[axis.name] for axis in axes if _fits(axis, found.get(axis.name))}


def _fits(axis: Axis, chosen: Any) -> bool:
    values = _list(chosen)
    if axis.kinds is not None:
        return bool(values) and all(isinstance(value, str) for value in values)
    return len(values) == 2 and all(value is None or _is_finite(value) for value in values)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def address_of(ranges: Ranges) -> str:
    """Return ranges as an entry of an address; "" for none."""
    return json.dumps(ranges, separators=(",", ":")) if ranges else ""


__all__ = ["Axis", "Ranges", "address_of", "axes_of", "intervals_of", "is_selected", "ranges_in", "ranges_of"]
