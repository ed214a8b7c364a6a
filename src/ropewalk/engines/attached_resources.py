"""Resources that a function carries with it, for whoever starts a process to run it."""

from __future__ import annotations

import functools
from typing import Any, cast

from ropewalk.engines.resources import Resources

_ATTRIBUTE, _CALL = "__ropewalk_meta__", "__call__"


def attach(function: Any, resources: Resources) -> None:
    """Have a function, or a class, say what it needs.

    Raises:
        TypeError: it takes no attributes: a builtin, or a bound method.
    """
    if issubclass(type(function), staticmethod | classmethod):
        function = function.__func__
    try:
        setattr(function, _ATTRIBUTE, resources)
    except (AttributeError, TypeError) as error:
        message = f"{function!r} cannot carry resources; define a function that calls it, and decorate that"
        raise TypeError(message) from error


def attached(function: object) -> Resources | None:
    """What a function was said to need; None if nothing was said.

    A `functools.partial` needs what its function needs, an instance of a class what its class or its `__call__` does.
    """
    while issubclass(type(function), functools.partial) and not hasattr(function, _ATTRIBUTE):
        function = cast(Any, function).func
    for candidate in (function, getattr(type(function), _CALL, None)):
        found = getattr(candidate, _ATTRIBUTE, None)
        if isinstance(found, Resources):  # some objects answer to every name
            return found
    return None
