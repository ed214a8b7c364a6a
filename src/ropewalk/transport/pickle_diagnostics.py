"""Finds the part of a value that cannot be pickled.

Pickle's own error names a type. To find the place, the value is walked after the failure: of the parts of the failing
object, the first one that fails by itself is walked next, until no part fails. That costs pickling again, so it is
bounded.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from ropewalk.transport.main_namespace import main_globals

MAX_DEPTH = 30
MAX_ATTEMPTS = 100_000
MAX_SECONDS = 2.0
_ATOMS = (int, float, complex, str, bytes, bytearray, bool, type(None))

Attempt = Callable[[Any], Exception | None]
"""Tries to pickle a value and returns the error, or None."""


def find_culprit(
    value: Any, error: Exception, attempt: Attempt, *, path: str, code_by_value: bool
) -> tuple[str, Any, Exception]:
    """Return the innermost part of `value` that cannot be pickled.

    Args:
        value: the value that could not be pickled.
        error: the error that pickling it raised.
        attempt: tries to pickle a part.
        path: name of the value itself, such as "args".
        code_by_value: whether functions and classes are walked too.

    Returns:
        The part's path, the part itself, and its own error.
    """
    seen = {id(value)}
    deadline = time.monotonic() + MAX_SECONDS
    attempts = itertools.count()
    for _ in range(MAX_DEPTH):
        is_known = kind_of(value).__module__.startswith("multiprocessing.") or isinstance(value, threading.Thread)
        if is_known or refuses_itself(value, error):
            break  # the user knows the Queue or the thread, not the lock inside it
        for step, part in _parts(value, code_by_value):
            if isinstance(part, _ATOMS) or id(part) in seen:
                continue
            if next(attempts) >= MAX_ATTEMPTS or time.monotonic() > deadline:
                return path, value, error
            found = attempt(part)
            if found is not None:
                seen.add(id(part))
                path, value, error = path + step, part, found
                break
        else:
            break
    return path, value, error


def kind_of(value: object) -> type[Any]:
    """Return the type of a user's value."""
    return type(value)


def refuses_itself(value: object, error: Exception) -> bool:
    """Return whether an object's own `__reduce__` or the like raised, with a message that says more than any path."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    kind = kind_of(value)
    methods = (getattr(kind, name, None) for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
    codes = [getattr(method, "__code__", None) for method in methods]
    return trace is not None and trace.tb_frame.f_code in codes


def _parts(value: Any, code_by_value: bool) -> Iterator[tuple[str, Any]]:
    """Return the parts of a value, each with the step that leads to it: `.name`, `[index]`, `[key]`."""
    kind = kind_of(value)
    if kind is dict:
        yield from _items(value.items())
    elif kind in (list, tuple):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif kind in (set, frozenset):
        for item in value:
            yield f".<element {_short(item)}>", item
    elif kind is types.FunctionType:
        if code_by_value:
            yield from _function_parts(value)
    elif kind is types.MethodType:
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif kind is functools.partial:
        yield ".func", value.func
        for index, item in enumerate(value.args):
            yield f".args[{index}]", item
        for key, item in value.keywords.items():
            yield f".keywords[{key!r}]", item
    elif issubclass(kind, type):
        if code_by_value:
            attributes: Any = value.__dict__
            for name, item in attributes.items():
                if not isinstance(item, types.MemberDescriptorType | types.GetSetDescriptorType):
                    yield f".{name}", item
    elif isinstance(value, property):
        yield ".fget", value.fget
        yield ".fset", value.fset
    elif isinstance(value, staticmethod | classmethod):
        yield ".__func__", value.__func__  # pyright: ignore[reportUnknownMemberType]
    elif not isinstance(value, types.ModuleType):
        yield from _instance_parts(value)


def _function_parts(func: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            yield f".<closure>[{name!r}]", cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    for index, item in enumerate(func.__defaults__ or ()):
        yield f".<defaults>[{index}]", item
    for name, item in (func.__kwdefaults__ or {}).items():
        yield f".<defaults>[{name!r}]", item
    for name, item in vars(func).items():
        yield f".{name}", item
    if func.__globals__ is main_globals():
        return  # they are definitions of their own, and no part of the function
    for name in func.__code__.co_names:
        if name in func.__globals__:
            yield f".<globals>[{name!r}]", func.__globals__[name]


def _instance_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the parts as pickle sees them: an attribute that `__getstate__` leaves out cannot be the cause."""
    try:
        reduced: Any = value.__reduce_ex__(5)
    except Exception:  # whatever user code raises: then only the attributes can be looked at
        state: Any = getattr(value, "__dict__", None)
        yield from _attributes(state)
        return
    if not isinstance(reduced, tuple):
        return
    _, arguments, state, list_items, dict_items, *_ = (*reduced, None, None, None, None)  # pyright: ignore
    parts: list[Any] = list(state) if type(state) is tuple else [state]  # pyright: ignore
    for part in parts:
        yield from _attributes(part)
    if isinstance(state, list) and dataclasses.is_dataclass(value):  # the state of a frozen one with slots
        names_of_fields = (field.name for field in dataclasses.fields(value))
        yield from _attributes(dict(zip(names_of_fields, state, strict=False)))  # pyright: ignore
    names = {id(item): name for name, item in getattr(value, "__dict__", {}).items()}
    fields: tuple[str, ...] = getattr(value, "_fields", ())  # of a named tuple
    for index, item in enumerate(arguments or ()):  # pyright: ignore
        if isinstance(item, type):
            continue  # usually the object's own class: then the object is the cause
        if id(item) in names:
            step = f".{names[id(item)]}"
        elif 0 < index <= len(fields):
            step = f".{fields[index - 1]}"
        else:
            step = f".args[{index}]" if isinstance(value, BaseException) else f".__reduce__()[1][{index}]"
        yield step, item
    for index, item in enumerate(list_items or ()):
        yield f"[{index}]", item
    yield from _items(dict_items or ())


def _attributes(state: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(state, "items"):
        for name, item in state.items():
            yield f".{name}", item


def _items(items: Any) -> Iterator[tuple[str, Any]]:
    for key, item in items:
        yield f"[{_short(key)}]", item
        yield f".<key {_short(key)}>", key


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a user's repr: the path is an aid, and must not fail
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."
