"""What a message says of a keyword argument or a method that does not exist: where it is, or what takes its place.

    Trainer(clip_norm=1)    write options=ropewalk.pipeline.TrainingOptions(clip_norm=...)
    trainer.fit             write a loop: for x, y in loader: trainer.step(x, y)

Python alone would say "unexpected keyword argument 'clip_norm'". Taking `**options` in the signature instead would let
type checkers and editors accept every name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ropewalk.near_names import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

OF_RESOURCES = {"resources=ropewalk.Resources({}=...)": ("cpus", "gpus", "memory")}
"""The place of what a process asks its engine for."""


def tells_places(places: Mapping[str, type[Any] | Sequence[str]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function that is called with an option of one of its arguments' objects say where to write it.

    Args:
        places: what to write, with `{}` for the option, as in "options=TrainingOptions({}=...)"; and the options of
            that place: their names, or the dataclass whose fields with a default they are.
    """
    place_of = {option: place for place, there in places.items() for option in _options(there)}

    def telling(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__  # not by `inspect`, whose import a first pool would wait for
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        owner = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise TypeError(f"{owner} has no argument {name}{instead(name)}")
            return function(*args, **kwargs)

        def instead(name: str) -> str:
            return f"; write {place_of[name].format(name)}" if name in place_of else did_you_mean(name, known)

        return checked

    return telling


def tells_names(places: Mapping[str, Sequence[str]]) -> Callable[[type[R]], type[R]]:
    """Let the objects of a class say what to write in place of a method or attribute that others have.

    Args:
        places: what to write, and the names in whose place it is.
    """
    place_of = {name: place for place, names in places.items() for name in names}

    def telling(kind: type[R]) -> type[R]:
        def missing(self: R, name: str) -> Any:
            if hasattr(kind, name):  # a property raised AttributeError itself, and does so again
                return object.__getattribute__(self, name)
            instead = f"; write {place_of[name]}" if name in place_of else ""
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{instead}", name=name, obj=self)

        kind.__getattr__ = missing  # type: ignore[attr-defined]  # not in the class, where checkers would accept any name
        return kind

    return telling


def _options(there: type[Any] | Sequence[str]) -> Sequence[str]:
    if not isinstance(there, type):
        return there
    import dataclasses  # by those that have imported it already

    missing = dataclasses.MISSING
    fields = dataclasses.fields(there)
    return [field.name for field in fields if field.default is not missing or field.default_factory is not missing]


__all__ = ["OF_RESOURCES", "tells_names", "tells_places"]
