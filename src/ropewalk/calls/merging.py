"""Merging calls into one and dividing its result: the interface of both ways to do so. Pure.

Stacking         each call is one entry of a new first axis
Concatenating    each call brings any number of rows
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, cast

from ropewalk.calls.trees import inner_path, kind_of, library_of, parts_of, rebuilt, words_of
from ropewalk.quantities import counted

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


class _Step(NamedTuple):
    """A step on the way to a part of a result, by which an error names the part."""

    container: Any
    key: Any


class Merging(abc.ABC):
    """A way to merge several calls into one."""

    advice: str
    """Told to the caller of a call that does not fit."""
    unit: str
    """What an entry of a result belongs to: "call" or "row"."""

    @abc.abstractmethod
    def form(self, value: Any) -> Hashable:
        """The properties that must be equal in all calls of a batch."""

    @abc.abstractmethod
    def size(self, call: Arguments) -> int:
        """The size of a call, in the unit of `max_size`.

        Raises:
            ValueError: the call cannot be part of a batch.
        """

    @abc.abstractmethod
    def merge_values(self, values: Sequence[Any]) -> Any:
        """One argument of the batch, from those of its calls."""

    @abc.abstractmethod
    def shares(self, entries: Any, sizes: Sequence[int]) -> list[Any]:
        """The share of each call in the entries of an array or list; there are as many as the sizes add up to."""

    def merge(self, calls: Sequence[Arguments]) -> Arguments:
        """The arguments of one call that stands for these compatible calls, one or more."""
        args = tuple(self.merge_values(column) for column in zip(*(args for args, _ in calls), strict=True))
        return args, {name: self.merge_values([kwargs[name] for _, kwargs in calls]) for name in calls[0][1]}

    def merge_parts(self, values: Sequence[Any], parts: dict[Any, Any]) -> Any:
        """A container like the first of these, whose parts are `parts`, with the merged parts of all."""
        columns = [parts_of(value) or {} for value in values]
        return rebuilt(values[0], {key: self.merge_values([column[key] for column in columns]) for key in parts})

    def divide(self, result: Any, sizes: Sequence[int], path: tuple[_Step, ...] = ()) -> list[Any]:
        """The share of each call in the result of their batch: None is given to all of them.

        Arrays and lists are divided by their entries, and dicts, tuples and dataclasses part by part.

        Args:
            result: what the batch returned.
            sizes: of its calls.
            path: where this result is a part of another one: the containers and their keys, outermost first.

        Raises:
            ValueError: a part of the result has another length than the batch.
            TypeError: a part of the result cannot be divided.
        """
        if result is None:
            return [None] * len(sizes)
        if arrays := _arrays_of(result, sum(sizes)):  # policies return these
            return list(zip(*[self.shares(array, sizes) for array in arrays], strict=True))
        entries: Any = None
        if library_of(result) is not None:
            entries = result if result.shape else ()
        elif isinstance(result, list):
            entries = cast("list[Any]", result)
        if entries is not None:
            if len(entries) != sum(sizes):
                raise ValueError(
                    f"{self._needs(result, sizes, path)}it needs one entry per {self.unit}, in their order"
                )
            return self.shares(entries, sizes)
        parts = parts_of(result)
        if parts is None:
            raise TypeError(
                f"{self._needs(result, sizes, path)}return an array or a list with one entry per {self.unit}, or a "
                "dict, tuple or dataclass of such"
            )
        columns = {key: self.divide(part, sizes, (*path, _Step(result, key))) for key, part in parts.items()}
        return [rebuilt(result, {key: column[at] for key, column in columns.items()}) for at in range(len(sizes))]

    def _needs(self, result: Any, sizes: Sequence[int], path: tuple[_Step, ...]) -> str:
        place = "its result"
        for step in path:
            place = inner_path(place, step.container, step.key)
        return f"a batch of {sum(sizes)} {self.unit}s needs a result for each, but {place} is {words_of(result)}; "

    def split_compatible(self, calls: Sequence[Arguments]) -> tuple[dict[int, int], dict[int, ValueError]]:
        """Return the sizes of the calls that can form one batch, and why each other call cannot join; both by index.

        The batch has the form of most calls; if two forms are equally frequent, the one that came first.
        """
        sizes: dict[int, int] = {}
        odd: dict[int, ValueError] = {}
        for index, call in enumerate(calls):
            try:
                sizes[index] = self.size(call)
            except ValueError as error:
                odd[index] = error
        if len(sizes) <= 1:
            return sizes, odd
        forms = {index: self.form(calls[index]) for index in sizes}
        if len(set(forms.values())) <= 1:
            return sizes, odd
        chosen = Counter(forms.values()).most_common(1)[0][0]  # the first, if several are equally frequent
        fitting = [index for index, form in forms.items() if form == chosen]
        model = calls[fitting[0]]
        for index, form in forms.items():
            if form != chosen:
                odd[index] = ValueError(
                    f"this call does not fit into a batch with {counted(len(fitting), 'other')}: "
                    f"{self._difference(calls[index], model)}; {self.advice}"
                )
        return {index: sizes[index] for index in fitting}, odd

    def groups(self, calls: Sequence[Arguments], sizes: Sequence[int], most: int) -> list[list[int]]:
        """The calls to merge, by index and in order, in groups of at most `most`; a larger call runs alone.

        Args:
            calls: that can form one batch.
            sizes: of each.
            most: maximum size of a group.
        """
        groups: list[list[int]] = []
        left = 0
        for index, size in enumerate(sizes):
            if not groups or size > left:
                groups.append([])
                left = most
            groups[-1].append(index)
            left -= size
        return groups

    def _difference(self, call: Arguments, model: Arguments) -> str:
        """The first place where two calls of different form differ, in words."""
        (args, kwargs), (other_args, other_kwargs) = call, model
        if len(args) != len(other_args):
            return f"it has {len(args)} positional arguments, theirs have {len(other_args)}"
        if kwargs.keys() != other_kwargs.keys():
            return f"its keyword arguments are {sorted(kwargs)}, theirs are {sorted(other_kwargs)}"
        by_position = self._first_difference(args, other_args, "args")
        return by_position or self._first_difference(kwargs, other_kwargs, "kwargs")

    def _first_difference(self, value: Any, model: Any, path: str) -> str:
        if self.form(value) == self.form(model):
            return ""
        parts, others = parts_of(value), parts_of(model)
        alike = kind_of(value) is kind_of(model) or (isinstance(value, dict) and isinstance(model, dict))
        if alike and parts is not None and others is not None and parts.keys() == others.keys():
            for key, part in parts.items():
                difference = self._first_difference(part, others[key], inner_path(path, value, key))
                if difference:
                    return difference
        return f"{path} is {words_of(value)}, theirs is {words_of(model)}"


def _arrays_of(result: Any, num_entries: int) -> tuple[Any, ...]:
    """Return the parts of a tuple if each is an array with this number of entries; none otherwise."""
    if kind_of(result) is not tuple:
        return ()
    parts = cast("tuple[Any, ...]", result)
    return parts if all(library_of(part) is not None and part.shape[:1] == (num_entries,) for part in parts) else ()


__all__ = ["Arguments", "Merging"]
