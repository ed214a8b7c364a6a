"""Conversion of what users log, numbers and tensors, into floats with flat names."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.tracking.records import packed

_FLOAT, _STR = {float}, {str}


@dataclass(frozen=True, slots=True)
class LoggedNames:
    """The names of one call, as the next one probably has them again.

    Attributes:
        names: flat names.
        pack: packs the values of that call's mapping, which were floats; None if they were something else.
    """

    names: list[str]
    pack: Callable[..., bytes] | None = None


NO_NAMES = LoggedNames([])
"""Before the first call."""


def numbers_of(values: Mapping[str, Any], before: LoggedNames) -> tuple[LoggedNames, bytes]:
    """Return flat names, and the numbers `packed`.

    Args:
        values: numbers by name, or mappings of them.
        before: the names that the last call returned. The same list is returned if they are the same: the store finds
            records by it.

    Raises:
        TypeError: a value is not a number, or a name not a string.
    """
    names = list(values)
    if before.pack is not None and names == before.names:  # the usual case, without a loop in Python
        try:
            return before, before.pack(*values.values())
        except struct.error:  # another kind of value than before
            pass
    elif set(map(type, values.values())) == _FLOAT and set(map(type, names)) == _STR:
        same = before.names if names == before.names else names
        found = LoggedNames(same, struct.Struct(f"<{len(names)}d").pack)
        return found, packed(values.values())
    flat: list[str] = []
    numbers: list[float] = []
    add_numbers(values, flat, numbers)
    return LoggedNames(before.names if flat == before.names else flat), packed(numbers)


def to_number(value: Any, name: str) -> float:
    """Convert a value to a float.

    Args:
        value: a float, int or bool; a scalar of numpy; a tensor or an array of one element, on any device.
        name: name of the metric, for the error.

    Raises:
        TypeError: the value is something else.
    """
    if isinstance(value, float | int):
        return float(value)
    item = getattr(value, "item", None)
    if item is not None:
        try:
            return float(item())
        except (ValueError, TypeError, RuntimeError):
            shape = tuple(getattr(value, "shape", ()))
            raise TypeError(
                f"metric {name!r} is a {type(value).__name__} of shape {shape}; a metric is one number: log its mean, "
                f"or each element under a name of its own"
            ) from None
    if hasattr(value, "__float__") and not isinstance(value, str):
        return float(value)
    raise TypeError(
        f"metric {name!r} is {value!r:.80} of type {type(value).__name__}; a metric is a number, or a tensor or an "
        f"array of one element. Texts belong in run.note or run.config"
    )


def add_numbers(values: Mapping[str, Any], names: list[str], numbers: list[float], prefix: str = "") -> None:
    """Append names and numbers of a mapping; the names of nested mappings are joined by "/".

    Args:
        values: numbers by name, or mappings of them.
        names: names are appended here.
        numbers: numbers are appended here.
        prefix: what the names begin with.

    Raises:
        TypeError: a value is not a number, or a name not a string.
    """
    for name, value in values.items():
        if type(name) is not str:
            raise TypeError(f"the name of a metric is a string, not {name!r:.80}")
        if type(value) is float:
            names.append(prefix + name)
            numbers.append(value)
        elif isinstance(value, Mapping):
            add_numbers(cast("Mapping[str, Any]", value), names, numbers, f"{prefix}{name}/")
        else:
            names.append(prefix + name)
            numbers.append(to_number(value, prefix + name))


__all__ = ["NO_NAMES", "LoggedNames", "add_numbers", "numbers_of", "to_number"]
