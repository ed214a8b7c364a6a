"""Pickles of numpy arrays, made once for each dtype and shape.

The pickle of an array whose numbers travel out of band depends on its dtype, shape and writability only. Pickling and
unpickling it takes longer than everything else in a small call (5 and 4 µs; a lookup takes 1 µs), so both ends keep the
pickles that they have seen:

    array ─▶ (format, shape) ─▶ kept pickle ─▶ frame: pickle, numbers ─▶ known pickle ─▶ ndarray(shape, dtype, numbers)

A pickle is only taken as known after the value that it gave was pickled again here, and gave the same bytes.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import Any, cast

_MOST_ARRAYS = 4
"""A tuple of more arrays is pickled in the usual way."""
_MOST_KEPT = 512
"""Maximum number of pickles kept in each direction."""
_PLAIN_FORMATS = frozenset("?bBhHiIlLqQefd")
"""The formats of memory that consists of single numbers in the order of this machine."""

_Facts = tuple[bool, tuple[Any, ...]]
"""Whether the value is a tuple; then format, shape and writability of each array."""
_kept: dict[_Facts, bytes] = {}
_known: dict[bytes, tuple[bool, list[tuple[tuple[int, ...], Any]]] | None] = {}


def dumps_arrays(value: Any) -> tuple[bytes, list[memoryview]] | None:
    """Pickle an array, or a tuple of arrays; returns None for any other value.

    Args:
        value: C-contiguous arrays of numbers, exactly of numpy's class; none twice.

    Returns:
        The pickle, and the memory of each array, of format "B".
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    given = value  # a type checker narrows the other name to a tuple of unknown types
    is_tuple = type(value) is tuple
    arrays: tuple[Any, ...] = given if is_tuple else (value,)
    ndarray = getattr(numpy, "ndarray", None)  # it may be half imported
    if not arrays or len(arrays) > _MOST_ARRAYS or type(arrays[0]) is not ndarray:
        return None
    facts: list[Any] = []
    views: list[memoryview] = []
    for array in arrays:
        if type(array) is not ndarray or array.dtype.metadata:
            return None
        try:
            view = memoryview(array)
        except (ValueError, BufferError):  # dates, and other dtypes that memory has no format for
            return None
        if view.format not in _PLAIN_FORMATS or not view.nbytes or not view.shape or not view.c_contiguous:
            return None
        facts += view.format, view.shape, view.readonly
        views.append(view.cast("B"))
    if len(arrays) > 1 and len(set(map(id, arrays))) < len(arrays):
        return None  # after unpickling they must be one object as well
    key = is_tuple, tuple(facts)
    pickled = _kept.get(key)
    if pickled is None:
        pickled = pickle.dumps(value, 5, buffer_callback=_leave_out)
        _keep(_kept, key, pickled)
    return pickled, views


def loads_arrays(pickled: bytes, buffers: Sequence[Any]) -> Any:
    """Unpickle a value whose pickle is known to be that of arrays; None for any other.

    Args:
        pickled: the pickle.
        buffers: writable memory of the arrays, which then lie in it.
    """
    made = _known.get(pickled)
    if made is None:
        return None
    is_tuple, arrays = made
    ndarray = sys.modules["numpy"].ndarray
    if len(arrays) != len(buffers):
        return None
    values = [ndarray(shape, dtype, buffer) for (shape, dtype), buffer in zip(arrays, buffers, strict=True)]
    return tuple(values) if is_tuple else values[0]


def learn(pickled: bytes, buffers: Sequence[Any], value: Any) -> None:
    """Remember a pickle that has just been loaded, if it is that of arrays."""
    if pickled in _known or not 0 < len(buffers) <= _MOST_ARRAYS:
        return
    made = None
    again = dumps_arrays(value)
    if again and again[0] == pickled and all(view.nbytes == len(b) for view, b in zip(again[1], buffers, strict=True)):
        is_tuple = type(value) is tuple
        arrays = cast("tuple[Any, ...]", value if is_tuple else (value,))
        if all(array.flags.writeable for array in arrays):
            made = is_tuple, [(array.shape, array.dtype) for array in arrays]
    _keep(_known, pickled, made)


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


def _leave_out(_buffer: pickle.PickleBuffer) -> bool:
    return False


__all__ = ["dumps_arrays", "learn", "loads_arrays"]
