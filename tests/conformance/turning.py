"""Turns a test file of CPython round to another module, without changing a word of its bodies.

The file reaches multiprocessing in two ways, and both are turned here:

    import statements, on top and          its own `__import__`   ->  stand-ins, whose names under test are MODULE's
    inside of functions
    "from multiprocessing import Pool" in  its constants          ->  "from MODULE import Pool"
    a script for a new interpreter

So what a body finds as `multiprocessing.Queue` or by `from multiprocessing.managers
import BaseManager` is MODULE's. Everything else is the real thing: `test.support`,
`multiprocessing.util`, `multiprocessing.process`, and what other modules import.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import inspect
import os
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

ORIGINAL = "multiprocessing"
# Processes import this too: those of Ropewalk may take the default, those of the original inherit the variable.
MODULE = os.environ.get("CONFORMANCE_MODULE", "ropewalk")

#: The modules under test. Which of their names are MODULE's own, docs/multiprocessing.md says.
TURNED = {
    ORIGINAL,
    *(f"{ORIGINAL}.{name}" for name in ("connection", "managers", "pool", "queues", "shared_memory", "sharedctypes")),
}


class StandIn(types.ModuleType):
    """A module of multiprocessing to the eye of the tests, in which the names under test are MODULE's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._original = importlib.import_module(name)
        self._ours: Any = importlib.import_module(name.replace(ORIGINAL, MODULE, 1))

    def __getattr__(self, name: str) -> Any:
        if f"{self.__name__}.{name}" in TURNED:
            return stand_in(f"{self.__name__}.{name}")
        original = getattr(self._original, name)
        if isinstance(original, types.ModuleType):
            return original
        if name in self._original.__all__:
            return getattr(self._ours, name)
        return getattr(self._ours, name, original)


@functools.cache
def stand_in(name: str) -> StandIn:
    return StandIn(name)


def load(name: str, into: dict[str, Any]) -> None:
    """Execute the module of this name once more, turned round, as the module with this dictionary.

    Its functions and classes then belong to that module, and processes find them there.
    """
    spec: Any = importlib.util.find_spec(name)
    into["__file__"] = spec.origin
    into["__builtins__"] = {**vars(builtins), "__import__": _import}
    exec(_turned(spec.loader.get_code(name)), into)  # from the cache of compiled files: 6000 lines take their time


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> types.ModuleType:
    module = builtins.__import__(name, globals, locals, fromlist, level)
    imported = name if fromlist else name.partition(".")[0]
    return stand_in(imported) if imported in TURNED else module


def _turned(constant: Any) -> Any:
    """A code object with the imports in its texts turned, or such a text."""
    if isinstance(constant, types.CodeType):
        return constant.replace(co_consts=tuple(_turned(inner) for inner in constant.co_consts))
    if isinstance(constant, str) and "\n" in constant:
        constant = re.sub(rf"^( *from ){ORIGINAL}\b", rf"\1{MODULE}", constant, flags=re.MULTILINE)
        constant = re.sub(rf"^( *import ){ORIGINAL}(?= as )", rf"\1{MODULE}", constant, flags=re.MULTILINE)
        return re.sub(rf"^( *import ){ORIGINAL}$", rf"\1{MODULE} as {ORIGINAL}", constant, flags=re.MULTILINE)
    return constant


def lengthen(case: type, body: str, seconds: Mapping[object, object]) -> None:
    """Put other numbers for those of a body: the seconds that CPython gives others are too few beside busy processes.

    Python 3.14 keeps whole numbers below 256 among the instructions, where this does not find them.
    """
    function = vars(case)[body]
    function = inspect.unwrap(getattr(function, "__func__", function))  # of a class method, and below decorators
    longer = {(type(few), few): more for few, more in seconds.items()}  # 1 is True, and 1.0
    code = function.__code__
    function.__code__ = code.replace(co_consts=tuple(longer.get((type(one), one), one) for one in code.co_consts))
