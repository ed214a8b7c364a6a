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
from ropewalk.calls.trees import is_number, kind_of, library_of, parts_of


class Stacking(Merging):
    """Makes each call an entry of a new first axis."""

    advice = (
        "the calls of a batched method need arguments of one form; if they bring different numbers of rows, mark it "
        "@rw.batched(..., concatenate=True)"
    )
    unit = "call"

    def split_compatible(self, calls: Sequence[Arguments]) -> tuple[dict[int, int], dict[int, ValueError]]:
        """See `Merging`."""
        if _each_is_one_array_of_one_kind(calls):  # most batches; forms take longer than a small product
            return dict.fromkeys(range(len(calls)), 1), {}
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

    def merge_values(self, values: Sequence[Any]) -> Any:
        """See `Merging`."""
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
        return list(values) if parts is None else self.merge_parts(values, parts)

    def shares(self, entries: Any, sizes: Sequence[int]) -> list[Any]:
        """See `Merging`."""
        return list(entries)


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


def _numbers(values: Sequence[Any]) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return list(values)
    array = numpy.asarray(values)
    # Integers that fit no numpy type would lose digits as floats.
    whole = all(isinstance(value, int) for value in values)
    return array if array.dtype.kind in ("biu" if whole else "biufc") else list(values)


__all__ = ["Stacking"]
