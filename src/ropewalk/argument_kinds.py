"""What a message says of an argument of the wrong type: its name, what it is, and an example of what to give."""

from __future__ import annotations

from types import UnionType


def check_kind(name: str, given: object, kind: type | UnionType, example: str, *, required: bool = False) -> None:
    """Raise unless a value is of the expected type, or None if it is not required.

    Args:
        name: the name of the argument.
        given: its value.
        kind: the expected type.
        example: an example for the message.
        required: whether None is refused, too.

    Raises:
        TypeError: the value is of another type.
    """
    if not isinstance(given, kind) and (given is not None or required):
        raise TypeError(f"{name} is of type {type(given).__name__}; give {example}")


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


__all__ = ["check_kind", "check_texts"]
