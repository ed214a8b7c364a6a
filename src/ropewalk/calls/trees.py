"""Arguments and results as trees: containers of arrays, numbers and other values.

Without numpy or torch: an array can only have come from a library that is loaded.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any, cast

# Values belong to the user, so they are Any here.


def library_of(value: object) -> Any:
    """The library that an array belongs to; None if the value is not an array."""
    return _library_of_kind(type(value))


@functools.lru_cache(256)
def _library_of_kind(kind: type[object]) -> Any:
    """See `library_of`. A type of arrays exists after its library only, so what is found stays true."""
    for name, base in (("numpy", "ndarray"), ("torch", "Tensor")):
        library = sys.modules.get(name)
        if issubclass(kind, getattr(library, base, ())):
            return library
    return None


def is_number(value: Any) -> bool:
    """Whether a value is a number, of Python's or numpy's types."""
    if isinstance(value, int | float | complex):
        return True
    numpy = sys.modules.get("numpy")
    return isinstance(value, (getattr(numpy, "number", ()), getattr(numpy, "bool_", ())))


def parts_of(value: Any) -> dict[Any, Any] | None:
    """The contents of a container, by key, position or field; None if the value is not a container."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def rebuilt(like: Any, parts: dict[Any, Any]) -> Any:
    """A container like this one, with other parts."""
    if isinstance(like, dict):
        return parts
    if isinstance(like, list):
        return list(parts.values())
    if isinstance(like, tuple):
        make: Any = getattr(cast("Any", like), "_make", tuple)  # named tuples have one
        return make(parts.values())
    # Not by its constructor, which may check conditions that hold for one call only.
    made = copy.copy(like)
    for name, part in parts.items():
        object.__setattr__(made, name, part)  # also if it is frozen
    return made


def kind_of(value: object) -> type[object]:
    """The type of a user's value."""
    return type(value)


def inner_path(path: str, container: Any, key: Any) -> str:
    """The path of a part of a container, which is itself at a path."""
    if dataclasses.is_dataclass(container):
        return f"{path}.{key}"
    return f"{path}[{key!r}]"


def words_of(value: Any) -> str:
    """A description of the value, for errors."""
    if library_of(value) is not None:
        device = str(getattr(value, "device", "cpu"))
        where = "" if device == "cpu" else f" on {device}"
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}{where}"
    if isinstance(value, dict):
        keys = cast("dict[Any, Any]", value)
        return f"a dict with the keys {', '.join(map(repr, keys)) or 'none'}"
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return f"a {kind_of(items).__name__} of {len(items)}"
    return f"of type {kind_of(value).__name__}"
