"""Exceptions that arrive as they were, without another call of their class's own `__init__`.

    class Refused(Exception):
        def __init__(self, host, code):
            super().__init__(f"{host} refused: {code}")

Of this one, pickle keeps `args`, which is the message alone, and then calls `Refused("a refused: 7")`. That fails; a
class with one argument puts its words around the message a second time. So the object is made by the built-in class
below, from `args`, and gets its attributes.
"""

from __future__ import annotations

import copyreg
import types
from typing import Any, cast

_HEAP_TYPE = 1 << 9
"""The flag of classes that were made while the program ran (Py_TPFLAGS_HEAPTYPE); the others are built in."""


def reduce_exception(error: BaseException) -> Any:
    """Return the reduction of an exception whose class has an `__init__`; NotImplemented where pickle's own is right.

    That is the case where the class says itself how it is pickled, or keeps attributes in slots, which pickle leaves
    to `__init__`.
    """
    kind: Any = type(error)
    base: Any = kind
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    if (
        not isinstance(kind.__init__, types.FunctionType)
        or kind.__reduce__ is not base.__reduce__
        or kind.__reduce_ex__ is not BaseException.__reduce_ex__
        or kind.__setstate__ is not BaseException.__setstate__
        or kind in copyreg.dispatch_table
        or cast(Any, copyreg)._slotnames(kind)
    ):
        return NotImplemented
    _, args, *attributes = base.__reduce__(error)
    return _rebuilt, (kind, base, args), attributes[0] if attributes else None, None, None, _set_attributes


def _rebuilt(kind: Any, base: Any, args: tuple[Any, ...]) -> BaseException:
    error = base.__new__(kind, *args)
    base.__init__(error, *args)  # sets what is in C: the value of a StopIteration, the code of a SystemExit
    return cast(BaseException, error)


def _set_attributes(error: BaseException, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        BaseException.__setattr__(error, name, value)  # the class may forbid it, as a frozen dataclass does


__all__ = ["reduce_exception"]
