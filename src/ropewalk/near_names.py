"""What a message says of a name or value that does not exist: the closest one, and all that there are."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from ropewalk.quantities import listed

_MOST_SHOWN = 30
"""The number of names that a message lists."""


def near_names(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the names that are closest to one that does not exist.

    Args:
        name: the unknown name.
        known: the names that exist.
        most: how many to return.
        cutoff: the least similarity, from 0 to 1.
    """
    # Imported here because only an error needs it.
    return importlib.import_module("difflib").get_close_matches(name, list(known), n=most, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str], *, quoted: bool = True) -> str:
    """Return the closest name as the end of a message; an empty text if none is close.

    Args:
        name: the unknown name.
        known: the names that exist.
        quoted: whether names have quotation marks in this message.

    Example:
        >>> did_you_mean("lerning_rate", ["learning_rate", "batch"])
        "; did you mean 'learning_rate'?"
    """
    near = near_names(name, known)
    return f"; did you mean {near[0]!r}?" if near and quoted else f"; did you mean {near[0]}?" if near else ""


def instead_of(name: str, known: Iterable[str], words: str = "there are", *, quoted: bool = True) -> str:
    """Return the closest name and the list of all as the end of a message.

    Args:
        name: the unknown name.
        known: the names that exist.
        words: what precedes the list, such as "it has".
        quoted: whether the closest name has quotation marks.

    Example:
        >>> instead_of("lerning_rate", ["learning_rate", "batch"])
        "; did you mean 'learning_rate'? There are learning_rate, batch"
        >>> instead_of("x", ["learning_rate", "batch"], "it has")
        '; it has learning_rate, batch'
    """
    names = list(known)
    hint = did_you_mean(name, names, quoted=quoted)
    begin = f"{hint} {words[0].upper()}{words[1:]}" if hint else f"; {words}"
    return f"{begin} {listed(names, _MOST_SHOWN) or 'none'}"


def check_choice(option: str, value: object, choices: Iterable[str], error: type[Exception] = ValueError) -> None:
    """Raise an error if the value of an option is none of its choices.

    Args:
        option: its name.
        value: what was given.
        choices: the values that it may have.
        error: the exception to raise.

    Example:
        >>> check_choice("policy", "on-failure", ["never", "on_failure"])
        Traceback (most recent call last):
        ...
        ValueError: policy must be one of 'never', 'on_failure', not 'on-failure'; did you mean 'on_failure'?
    """
    allowed = list(choices)
    if value not in allowed:
        meant = did_you_mean(str(value).replace("-", "_").lower(), allowed)
        raise error(f"{option} must be one of {', '.join(map(repr, allowed))}, not {value!r}{meant}")


__all__ = ["check_choice", "did_you_mean", "instead_of", "near_names"]
