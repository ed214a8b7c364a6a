"""Which modules the processes of a node share from the start, if its author does not say.

A process that imports torch itself takes one to nine seconds to start, one that is forked from a process that has
imported it a tenth of that, at each restart over. What a node needs is seen in its code: the modules that its own
module has imported, and those that its functions import. Only modules are considered that take long to import and start
no threads when they are, as no process with threads can be forked safely.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

from ropewalk.processes.messages import IF_THERE
from ropewalk.program.script import Script

SLOW_IMPORTS = ("torch", "scipy", "sklearn", "pandas", "gymnasium", "numpy")
"""Top-level modules that take 0.1 s or more to import, and start no threads."""


def found_preload(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the slow imports that the functions and classes among `values` need; skipped on hosts that lack them."""
    return _slow({name for value in values for name in _needed(value)})


def preload_of(code: CodeType) -> tuple[str, ...]:
    """Return the slow imports that code needs, such as that of a script."""
    return _slow(set(_names_in(code)))


def _slow(needed: Collection[str]) -> tuple[str, ...]:
    return tuple(f"{name}{IF_THERE}" for name in SLOW_IMPORTS if name in needed)


def _needed(value: Any) -> Iterator[str]:
    while isinstance(value, functools.partial):
        value = value.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(value, Script):
        code = value.code()
        if code is not None:
            yield from _names_in(code)
    if inspect.isclass(value) or inspect.isroutine(value):
        home = sys.modules.get(getattr(value, "__module__", "") or "")
        if home is not None:
            yield from _imported_by(home)
        for function in [value, *(vars(value).values() if inspect.isclass(value) else ())]:
            code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
            if isinstance(code, CodeType):
                yield from _names_in(code)


def _imported_by(module: ModuleType) -> Iterator[str]:
    """The top-level modules that a module's own names come from."""
    for value in list(vars(module).values()):
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(origin, str):
            yield origin.partition(".")[0]


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that a function uses, those of its imports among them, with the functions inside it."""
    yield from (name.partition(".")[0] for name in code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


__all__ = ["SLOW_IMPORTS", "found_preload", "preload_of"]
