"""What is said of an argument of the wrong type, or out of its range: its name, what was given, and what to give.

True and False are integers in Python, and hardly ever meant as such: they are refused where a type does not name bool.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, cast, get_args


def check_kind(name: str, given: object, kind: type | UnionType, example: str, *, required: bool = False) -> None:
    """Raise unless a value is of the expected type, or None if it is not required.

    Args:
        name: the name of the argument.
        given: its value.
        kind: the expected type; True and False are only of a type that names bool.
        example: an example for the message.
        required: whether None is refused, too.

    Raises:
        TypeError: the value is of another type.
    """
    fits = isinstance(given, kind) and (not isinstance(given, bool) or bool in (kind, *get_args(kind)))
    if not fits and (given is not None or required):
        raise _wrong_type(name, given, example)


def check_callable(name: str, given: object, example: str, *, required: bool = False) -> None:
    """Raise unless a value can be called, or is None if it is not required.

    Args:
        name: the name of the argument.
        given: its value.
        example: an example for the message.
        required: whether None is refused, too.

    Raises:
        TypeError: the value cannot be called.
    """
    if not callable(given) and (given is not None or required):
        raise _wrong_type(name, given, example)


def check_number(
    name: str,
    given: object,
    kind: type | UnionType,
    what: str,
    *,
    least: float | None = None,
    above: float | None = None,
    finite: bool = False,
    required: bool = False,
    error: type[Exception] = ValueError,
) -> None:
    """Raise unless a value is a number within its range, or None if it is not required. NaN is in no range.

    Example:
        >>> check_number("timeout_s", -1, int | float, "a number of seconds", above=0)
        Traceback (most recent call last):
        ...
        ValueError: timeout_s must be a number of seconds above 0, or None, not -1

    Args:
        name: the name of the argument.
        given: its value.
        kind: the expected type: `Integral`, `Real`, or types that are as narrow as what comes after them.
        what: the kind of number in words, "a number of seconds".
        least: the least number, if there is one.
        above: the number that it has to exceed, if there is one.
        finite: whether infinity is refused.
        required: whether None is refused, too.
        error: the exception for a number out of its range.

    Raises:
        TypeError: the value is of another type.
        Exception: of the type `error`, if it is out of its range.
    """
    bound = f" above {above:g}" if above is not None else f", {least:g} or more" if least is not None else ""
    rule = f"{what}{bound}{'' if required else ', or None'}"
    check_kind(name, given, kind, rule, required=required)
    if given is None:
        return
    number = cast("Any", given)
    fits = number > above if above is not None else number >= least if least is not None else number == number
    if not fits or (finite and number == float("inf")):
        raise error(f"{name} must be {rule}, not {given!r}")


def check_texts(name: str, given: object) -> None:
    """Raise if one text was given for a sequence of texts: its letters would be taken for them.

    Args:
        name: the name of the argument.
        given: its value.

    Raises:
        TypeError: the value is one text.
    """
    if isinstance(given, str):
        raise TypeError(f"{name} is the text {given!r}; give a list, [{given!r}]")


def _wrong_type(name: str, given: object, example: str) -> TypeError:
    return TypeError(f"{name} is of type {type(given).__name__}; give {example}")


__all__ = ["check_callable", "check_kind", "check_number", "check_texts"]
