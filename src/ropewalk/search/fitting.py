"""Whether a value belongs to a distribution, and texts as its values: configurations that people give."""

from __future__ import annotations

import json
from typing import Any

from ropewalk.population.hyperparameters import Choice, Distribution, Integers, LogUniform, Uniform, plain

_ROUNDING = 1e-8
"""Relative error at which a number still counts as a value of a distribution with steps: 0.1 + 0.2 is 0.3."""


def fitted(distribution: Any, value: Any) -> Any:
    """Return a value in the form that the distribution gives it.

    Args:
        distribution: a distribution, or the value of a constant.
        value: a value, or the text of one, as in `--set rate=1e-3`.

    Returns:
        The value: an `int` of Integers, a `float` of Uniform and LogUniform, the listed value of Choice. The value of
        another distribution is returned as it is.

    Raises:
        ValueError: it is not a value of the distribution; the message says which there are.
    """
    try:
        found = plain(value, "the value")
    except TypeError as error:
        raise ValueError(str(error)) from None
    if isinstance(distribution, Choice):
        return _listed(distribution.values, found)
    if isinstance(distribution, Integers):
        return _integer(distribution, found)
    if isinstance(distribution, Uniform | LogUniform):
        return _number(distribution, found)
    if isinstance(distribution, Distribution):
        return found
    return _listed([distribution], found)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two plain values are the same; True is not 1, and 1.0 is."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _listed(values: Any, value: Any) -> Any:
    for each in values:
        if is_same(each, value):
            return each
    if isinstance(value, str):
        for each in values:
            if value.lower() in (str(each).lower(), json.dumps(each)) or is_same(each, _as_json(value)):
                return each
    shown = ", ".join(map(repr, values))
    raise ValueError(f"{value!r} is not {'one of ' if len(values) > 1 else ''}{shown}")


def _integer(distribution: Integers, value: Any) -> int:
    number = _as_json(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number // 1:
        raise ValueError(f"{value!r} is not an integer")
    if not distribution.low <= number <= distribution.high:
        raise ValueError(f"{value!r} is not between {distribution.low} and {distribution.high}")
    if (found := distribution.nearest(number)) != number:
        raise ValueError(
            f"{value!r} is not a value of steps of {distribution.step} from {distribution.low}; {found} is the nearest"
        )
    return found


def _number(distribution: Uniform | LogUniform, value: Any) -> float:
    number = _as_json(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise ValueError(f"{value!r} is not a number")
    if not distribution.low <= number <= distribution.high:
        raise ValueError(f"{value!r} is not between {distribution.low} and {distribution.high}")
    found = distribution.nearest(number)
    step = distribution.step if isinstance(distribution, Uniform) else None
    if step is not None and abs(found - number) > _ROUNDING * max(step, abs(number)):
        raise ValueError(f"{value!r} is not a value of steps of {step} from {distribution.low}; {found} is the nearest")
    return found


def _as_json(text: str) -> Any:
    """Read a text as JSON does, and numbers as Python does: `.5` and `1e-3`; other texts stay what they are."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
