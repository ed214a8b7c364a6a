"""cloudpickle, with the file names of code: functions and classes that cannot be imported travel by value.

From version 3.1.3 on cloudpickle writes "<dynamic-code>" in place of the file that code comes from. Tracebacks of
workers, `ropewalk stack` and debuggers find source lines by that name.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cloudpickle.cloudpickle

if TYPE_CHECKING:
    _Pickler = pickle.Pickler
else:
    _Pickler = cloudpickle.Pickler

_cloudpickle: Any = cloudpickle.cloudpickle  # untyped

_CO_FILENAME = 10
"""Index of the file name among the arguments of `types.CodeType`."""


def reduce_code(code: types.CodeType) -> Any:
    """Reduce a code object, with the name of its file."""
    make, args = _cloudpickle._code_reduce(code)
    # A string object of its own, as cloudpickle makes them: the same code gives the same bytes wherever its name is
    # shared.
    filename = "".join(list(code.co_filename))
    return make, (*args[:_CO_FILENAME], filename, *args[_CO_FILENAME + 1 :])


class ByValuePickler(_Pickler):
    """Pickles anything; objects that cannot be imported travel by value. A function's globals are copied with it."""

    dispatch_table: Any = _cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: reduce_code})


def dumps_by_value(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Pickle anything; raises whatever the value's own pickling raises."""
    file = io.BytesIO()
    ByValuePickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()
