"""Merges calls by stacking: arguments get a new first axis, along which the result is divided.

    act(obs_0) ─┐                       ┌─▶ result[0]
    act(obs_1) ─┼─▶ act(stacked) ─▶ result ─▶ result[1]
    act(obs_2) ─┘                       └─▶ result[2]

    argument of one call           argument of the batch
    numpy array, torch tensor      one of them, with the calls as its first axis
    number, numpy scalar           numpy array of numbers; a list where numpy is not loaded
    dict, list, tuple, dataclass   the same, of batches
    anything else (str, None)      list

Pure, and without numpy or torch: an array can only have come from a library that is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any, cast

from ropewalk.calls.merging import Arguments, Merging
from ropewalk.calls.trees import inner_path, is_number, kind_of, library_of, parts_of, rebuilt, words_of


class Stacking(Merging):
    """Makes each call an entry of a new first axis."""

    advice = (
        "the calls of a batched method need arguments of one form; if they bring different numbers of rows, mark it "
        "@rw.batched(..., concatenate=True)"
    )

    def split_compatible(self, calls: Sequence[Arguments]) -> tuple[list[int], dict[int, ValueError]]:
        """See `Merging`."""
        if _each_is_one_array_of_one_kind(calls):  # most batches; forms take longer than a small product
            return list(range(len(calls))), {}
        return super().split_compatible(calls)

    def form(self, value: Any) -> Hashable:
        """See `Merging`."""
        if type(value) is tuple:  # as arguments are: without the dict that `parts_of` makes
            return tuple, tuple(map(self.form, cast("tuple[Any, ...]", value)))
        library = library_of(value)
        if library is not None:
            device = "" if library.__name__ == "numpy" else str(getattr(value, "device", ""))
            return library.__name__, tuple(value.shape), value.dtype, device
        if is_number(value):
            return "number"
        parts = parts_of(value)
        if parts is None:
            return "other"
        if isinstance(value, dict):
            return dict, frozenset((key, self.form(part)) for key, part in parts.items())
        return kind_of(value), tuple(self.form(part) for part in parts.values())

    def size(self, call: Arguments) -> int:
        """See `Merging`."""
        return 1

    def merge(self, calls: Sequence[Arguments]) -> Arguments:
        """See `Merging`."""
        args = tuple(_stack(column) for column in zip(*(args for args, _ in calls), strict=True))
        return args, {name: _stack([kwargs[name] for _, kwargs in calls]) for name in calls[0][1]}

    def divide(self, result: Any, sizes: Sequence[int]) -> list[Any]:
        """Divide arrays by their first axis, lists by item, and dicts, tuples and dataclasses part by part.

        None is given to all calls. See `Merging`.
        """
        return _unstack(result, len(sizes), "its result")


# Values belong to the user, so they are Any from here on.


def _each_is_one_array_of_one_kind(calls: Sequence[Arguments]) -> bool:
    numpy: Any = sys.modules.get("numpy")
    plain = getattr(numpy, "ndarray", None)
    if plain is None or not calls or len(calls[0][0]) != 1 or type(calls[0][0][0]) is not plain:
        return False
    shape, dtype = calls[0][0][0].shape, calls[0][0][0].dtype
    return all(
        len(args) == 1 and not kwargs and type(args[0]) is plain and args[0].shape == shape and args[0].dtype == dtype
        for args, kwargs in calls
    )


def _stack(values: Sequence[Any]) -> Any:
    first = values[0]
    library = library_of(first)
    if library is not None:
        plain = getattr(library, "ndarray", None)
        if all(type(value) is plain and value.dtype.kind in "biufc" for value in values):
            return library.array(values)  # takes a sixth of the time of `stack`
        return library.stack(values)
    if is_number(first):
        return _numbers(values)
    parts = parts_of(first)
    if parts is None:
        return list(values)
    columns = [parts_of(value) or {} for value in values]
    return rebuilt(first, {key: _stack([column[key] for column in columns]) for key in parts})


def _numbers(values: Sequence[Any]) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return list(values)
    array = numpy.asarray(values)
    # Integers that fit no numpy type would lose digits as floats.
    whole = all(isinstance(value, int) for value in values)
    return array if array.dtype.kind in ("biu" if whole else "biufc") else list(values)


def _unstack(result: Any, num_calls: int, path: str) -> list[Any]:
    if result is None:
        return [None] * num_calls
    entries: Any = None  # one for each call
    if library_of(result) is not None:
        entries = result if result.shape else ()
    elif isinstance(result, list):
        entries = cast("list[Any]", result)
    if entries is not None:
        if len(entries) != num_calls:
            raise ValueError(
                f"a batch of {num_calls} calls needs a result for each, but {path} is {words_of(result)}; "
                f"it needs one entry per call, in their order"
            )
        return list(entries)
    parts = parts_of(result)
    if parts is None:
        raise TypeError(
            f"a batch of {num_calls} calls needs a result for each, but {path} is {words_of(result)}; return an array "
            f"or a list with one entry per call, or a dict, tuple or dataclass of such"
        )
    columns = {key: _unstack(part, num_calls, inner_path(path, result, key)) for key, part in parts.items()}
    return [rebuilt(result, {key: column[index] for key, column in columns.items()}) for index in range(num_calls)]


__all__ = ["Stacking"]
