"""cloudpickle, with the file names of code: functions and classes that nobody can import, taken apart.

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

#: Where `types.CodeType` takes the name of the file.
_CO_FILENAME = 10


def reduce_code(code: types.CodeType) -> Any:
    """Code with the name of its file."""
    make, args = _cloudpickle._code_reduce(code)
    # A string of its own, as cloudpickle makes them: the same code gives the same bytes wherever its name is shared.
    filename = "".join(list(code.co_filename))
    return make, (*args[:_CO_FILENAME], filename, *args[_CO_FILENAME + 1 :])


class ByValuePickler(_Pickler):
    """Pickles anything: what cannot be imported by value. A function's globals are copied with it."""

    dispatch_table: Any = _cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: reduce_code})


def dumps_by_value(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Pickle anything; raises whatever its own pickling does."""
    file = io.BytesIO()
    ByValuePickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()
