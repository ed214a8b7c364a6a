"""What a message says of an argument of the wrong type: its name, that type, and an example of what to give."""

from __future__ import annotations

from types import UnionType


def check_kind(name: str, given: object, kind: type | UnionType, example: str) -> None:
    """Raise unless a value is None or of the expected type.

    Args:
        name: the name of the argument.
        given: its value.
        kind: the expected type.
        example: an example for the message.

    Raises:
        TypeError: the value is of another type.
    """
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} is of type {type(given).__name__}; give {example}")


__all__ = ["check_kind"]
