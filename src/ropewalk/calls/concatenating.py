"""Merges calls that bring any number of rows each: arrays are joined along their first axis.

act(8 rows) ─┐                        ┌─▶ result[0:8]
act(4 rows) ─┼─▶ act(13 rows) ─▶ result ─▶ result[8:12]
act(1 row)  ─┘                        └─▶ result[12:13]

argument of one call           argument of the batch
numpy array, torch tensor      one of them, with the rows of all calls
dict, list, tuple, dataclass   the same, of batches
anything else                  that value; calls with different values run one after the other
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

from ropewalk.calls.merging import Arguments, Merging
from ropewalk.calls.trees import inner_path, kind_of, library_of, parts_of, words_of


class Concatenating(Merging):
    """Joins the rows of calls."""

    advice = "the arrays of a method that joins rows may differ in their first axis only"
    unit = "row"

    def form(self, value: Any) -> Hashable:
        """See `Merging`."""
        if type(value) is tuple:  # as arguments are: without the dict that `parts_of` makes
            return tuple, tuple(map(self.form, cast("tuple[Any, ...]", value)))
        library = library_of(value)
        if library is not None:
            device = "" if library.__name__ == "numpy" else str(getattr(value, "device", ""))
            return library.__name__, tuple(value.shape[1:]), value.dtype, device
        parts = parts_of(value)
        if parts is None:
            return "other"
        if isinstance(value, dict):
            return dict, frozenset((key, self.form(part)) for key, part in parts.items())
        return kind_of(value), tuple(self.form(part) for part in parts.values())

    def split_compatible(self, calls: Sequence[Arguments]) -> tuple[dict[int, int], dict[int, ValueError]]:
        """See `Merging`."""
        sizes = _rows_of_arrays_of_one_kind(calls)  # most batches; forms take several times as long
        return super().split_compatible(calls) if sizes is None else (sizes, {})

    def groups(self, calls: Sequence[Arguments], sizes: Sequence[int], most: int) -> list[list[int]]:
        """See `Merging`. Only calls with equal values beside their arrays are merged."""
        if len(calls) == 1:
            return [[0]]
        if _are_arrays(calls):  # there are no values beside them
            return super().groups(calls, sizes, most)
        alike: dict[Hashable, list[int]] = {}
        for index, call in enumerate(calls):
            alike.setdefault(_other_values(call), []).append(index)
        return [
            [indices[at] for at in group]
            for indices in alike.values()
            for group in super(Concatenating, self).groups(
                [calls[index] for index in indices], [sizes[index] for index in indices], most
            )
        ]

    def size(self, call: Arguments) -> int:
        """The number of rows of a call; see `Merging`."""
        lengths: set[tuple[int, ...]] = set()
        _note_lengths(call, lengths)
        if len(lengths) == 1 and (length := lengths.pop()):
            return length[0]
        raise self._without_rows(call)

    def _without_rows(self, call: Arguments) -> ValueError:
        """The error of a call whose arrays have no common number of rows, or that has none."""
        first: tuple[str, Any] | None = None
        for path, array in itertools.chain(_arrays(call[0], "args"), _arrays(call[1], "kwargs")):
            if not array.shape:
                return ValueError(f"{path} is {words_of(array)}, and has no rows; give it a first axis, as in x[None]")
            if first is None:
                first = path, array
            elif array.shape[0] != first[1].shape[0]:
                return ValueError(
                    f"the arrays of a call need one number of rows, but {first[0]} is {words_of(first[1])} and {path} "
                    f"is {words_of(array)}"
                )
        return ValueError(
            "a call of a method that joins rows needs an array among its arguments, whose first axis are the rows"
        )

    def merge(self, calls: Sequence[Arguments]) -> Arguments:
        """See `Merging`."""
        return calls[0] if len(calls) == 1 else super().merge(calls)

    def merge_values(self, values: Sequence[Any]) -> Any:
        """See `Merging`."""
        first = values[0]
        library = library_of(first)
        if library is not None:
            return (library.cat if library.__name__ == "torch" else library.concatenate)(values)
        parts = parts_of(first)
        return first if parts is None else self.merge_parts(values, parts)

    def shares(self, entries: Any, sizes: Sequence[int]) -> list[Any]:
        """See `Merging`."""
        return [entries[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


# Values belong to the user, so they are Any from here on.


def _are_arrays(calls: Sequence[Arguments]) -> bool:
    """Return whether all arguments are numpy's arrays, by position."""
    plain = getattr(sys.modules.get("numpy"), "ndarray", None)
    return plain is not None and all(not kwargs and all(type(arg) is plain for arg in args) for args, kwargs in calls)


def _rows_of_arrays_of_one_kind(calls: Sequence[Arguments]) -> dict[int, int] | None:
    """Return the number of rows of each call, if all arguments are numpy's arrays of the same kinds; None otherwise."""
    if not calls or not calls[0][0] or not _are_arrays(calls):
        return None
    kinds = [(array.shape[1:], array.dtype) for array in calls[0][0]]
    sizes: dict[int, int] = {}
    for index, (args, _) in enumerate(calls):
        if len(args) != len(kinds) or not args[0].shape:
            return None
        rows = sizes[index] = args[0].shape[0]
        for array, (shape, dtype) in zip(args, kinds, strict=True):
            if array.shape[:1] != (rows,) or array.shape[1:] != shape or array.dtype != dtype:
                return None
    return sizes


def _note_lengths(value: Any, lengths: set[tuple[int, ...]]) -> None:
    """Note the length of each array in a value; as plain as it is because it runs several times for each call."""
    if library_of(value) is not None:
        lengths.add(tuple(value.shape[:1]))
    elif isinstance(value, list | tuple):
        for part in cast("Sequence[Any]", value):
            _note_lengths(part, lengths)
    elif parts := parts_of(value):
        for part in parts.values():
            _note_lengths(part, lengths)


def _arrays(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if library_of(value) is not None:
        yield path, value
    else:
        for key, part in (parts_of(value) or {}).items():
            yield from _arrays(part, inner_path(path, value, key))


def _other_values(value: Any) -> Hashable:
    """A key that two values of one form share if they differ in arrays only."""
    if library_of(value) is not None:
        return None
    if type(value) is tuple:
        return tuple(map(_other_values, cast("tuple[Any, ...]", value)))
    parts = parts_of(value)
    if parts is not None:
        return frozenset((key, _other_values(part)) for key, part in parts.items())
    try:
        return kind_of(value), hash(value), value
    except TypeError:  # a value without a hash equals no other
        return "own", id(value)


__all__ = ["Concatenating"]
