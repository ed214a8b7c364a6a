"""Checks whether arguments fit a function before it is called, with helpful messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropewalk.near_names import did_you_mean


def misfit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The reason why `function(*args, **kwargs)` cannot be called, or "" if it can, as far as its signature tells.

    Example:
        >>> def learn(rate, *, capacity=10): ...
        >>> misfit(learn, [0.1], {"capcity": 3})
        "learn() got an unexpected argument 'capcity'; did you mean 'capacity'? It takes (rate, *, capacity=10)"
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some classes written in C have no signature
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = _reason(signature, args, kwargs, str(error))
        stop = "" if reason.endswith("?") else "."
        return f"{_called(function)} {reason}{stop} It takes {_without_types(signature)}"
    return ""


def _called(function: Callable[..., Any]) -> str:
    while hasattr(function, "func"):  # functools.partial
        function = function.func  # type: ignore[attr-defined]
    name = getattr(function, "__name__", repr(function))
    return f"{name}.__init__()" if isinstance(function, type) else f"{name}()"


def _reason(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], said: str) -> str:
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    named = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    takes_any_name = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    takes_any_number = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)

    unexpected = [name for name in kwargs if name not in named and not takes_any_name]
    if unexpected:
        return f"got an unexpected argument {unexpected[0]!r}{did_you_mean(unexpected[0], named)}"
    if len(args) > len(positional) and not takes_any_number:
        return f"takes {len(positional)} positional arguments, but {len(args)} were given"
    given = {p.name for p in positional[: len(args)]}
    twice = [name for name in kwargs if name in given and name in named]
    if twice:
        return f"got the argument {twice[0]!r} twice, by position and by name"
    variable = (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    missing = [
        repr(p.name)
        for p in parameters
        if p.default is kinds.empty and p.kind not in variable and p.name not in given and p.name not in kwargs
    ]
    if missing:
        return f"misses the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    return said


def _without_types(signature: inspect.Signature) -> str:
    empty = inspect.Parameter.empty
    plain = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(plain))
