"""What a message says of a keyword argument that does not exist: the argument to whose object the option belongs.

Python alone would say "unexpected keyword argument 'clip_norm'". Taking `**options` in the signature instead would let
type checkers and editors accept every name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from ropewalk.near_names import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def tells_places(
    places: Mapping[str, type[Any]], other_names: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function that is called with an option of one of its arguments' objects say where to write it.

    Args:
        places: what to write, with `{}` for the option, as in "options=TrainingOptions({}=...)"; and the dataclass
            whose fields with a default are the options of that place.
        other_names: what to write for an argument that another library has, by its name there.
    """
    place_of = {field.name: place for place, kind in places.items() for field in _options(kind)}

    def telling(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters
        owner = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise TypeError(f"{owner} has no argument {name}{instead(name)}")
            return function(*args, **kwargs)

        def instead(name: str) -> str:
            if name in other_names:
                return f"; write {other_names[name]}"
            return f"; write {place_of[name].format(name)}" if name in place_of else did_you_mean(name, known)

        return checked

    return telling


def _options(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return [field for field in fields if field.default is not missing or field.default_factory is not missing]


__all__ = ["tells_places"]
