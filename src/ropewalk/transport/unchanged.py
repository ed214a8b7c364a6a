"""Checks in microseconds whether a function and all that it reaches by name are unchanged.

Only objects that cannot change from within are watched: functions, modules, importable classes and constants. If a
function reaches anything else (a list, an object, a class of `__main__`, a closure), it is not watched, and is pickled
anew each time.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any

import cloudpickle.cloudpickle

from ropewalk.transport.main_namespace import main_globals
from ropewalk.transport.picklers import global_names

_cloudpickle: Any = cloudpickle.cloudpickle
_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))
_MISSING = object()

_Watched = tuple[str | None, "weakref.ref[types.FunctionType]", types.CodeType, tuple[Any, ...] | None]
"""Name in `__main__` or None, function, its code, its defaults."""


class Unchanged:
    """The objects that a function reached when it was pickled."""

    __slots__ = ("_functions", "_main", "_num_modules", "_values")

    def __init__(self, values: list[tuple[str, Any]], functions: list[_Watched]) -> None:
        self._main = main_globals()
        self._values = values
        self._functions = functions
        self._num_modules = len(sys.modules)  # a submodule imported since would have to travel along

    def holds(self) -> bool:
        """Return whether pickling again would give the same bytes."""
        main = self._main
        if main is not main_globals() or len(sys.modules) != self._num_modules:
            return False
        for name, value in self._values:
            if main.get(name, _MISSING) is not value:
                return False
        for name, function, code, defaults in self._functions:
            # A weak reference, because the cache keeps this object only as long as the function lives.
            found = function()
            if found is None or (name is not None and main.get(name) is not found):
                return False
            if found.__code__ is not code or found.__defaults__ is not defaults or not _is_plain(found):
                return False
        return True


def watch(function: types.FunctionType, reached: Mapping[str, Any]) -> Unchanged | None:
    """Watch a function of `__main__` and the names that it reaches; returns None if one of them can change unnoticed.

    Args:
        function: the function, pickled a moment ago.
        reached: the values of the names of `__main__` to which it refers, directly or through others.
    """
    main = main_globals()
    values: list[tuple[str, Any]] = []
    functions: list[_Watched] = []
    for name, value in [(None, function), *reached.items()]:
        if isinstance(value, types.FunctionType) and value.__globals__ is main:
            if not _is_plain(value) or not _is_constant(value.__defaults__):
                return None
            functions.append((name, weakref.ref(value), value.__code__, value.__defaults__))
            # A name that is missing may be defined later, and would hide a builtin.
            values.extend((missing, _MISSING) for missing in global_names(value.__code__) if missing not in main)
        elif name is not None and _is_constant(value):
            values.append((name, value))
        else:
            return None
    return Unchanged(values, functions)


def _is_plain(function: types.FunctionType) -> bool:
    return not (function.__closure__ or function.__kwdefaults__ or function.__dict__)


def _is_constant(value: Any) -> bool:
    if type(value) in _CONSTANTS or isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        return True
    if type(value) is tuple:
        return all(map(_is_constant, value))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, types.FunctionType | type):
        return _cloudpickle._lookup_module_and_qualname(value) is not None  # None for those of `__main__`
    return False
