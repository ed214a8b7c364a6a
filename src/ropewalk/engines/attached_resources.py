"""The resources that `requires` attaches to a function, read when a process is started to run it."""

from __future__ import annotations

import functools
from typing import Any, cast

from ropewalk.engines.resources import Resources

_ATTRIBUTE, _CALL = "__ropewalk_meta__", "__call__"


def attach(function: Any, resources: Resources) -> None:
    """Attach resources to a function or a class.

    Raises:
        TypeError: the object takes no attributes, such as a builtin or a bound method.
    """
    if issubclass(type(function), staticmethod | classmethod):
        function = function.__func__
    try:
        setattr(function, _ATTRIBUTE, resources)
    except (AttributeError, TypeError) as error:
        message = f"{function!r} cannot carry resources; define a function that calls it, and decorate that"
        raise TypeError(message) from error


def attached(function: object) -> Resources | None:
    """Return the resources attached to a function; None if there are none.

    A `functools.partial` has those of its function, an instance of a class those of its class or of its `__call__`.
    """
    while issubclass(type(function), functools.partial) and not hasattr(function, _ATTRIBUTE):
        function = cast(Any, function).func
    for candidate in (function, getattr(type(function), _CALL, None)):
        found = getattr(candidate, _ATTRIBUTE, None)
        if isinstance(found, Resources):  # some objects have every attribute
            return found
    return None
