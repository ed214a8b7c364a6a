"""How many calls become one, and its result theirs again: what the ways of doing that have in common. Pure.

Stacking         each call is one entry of a new first axis
Concatenating    each call brings any number of rows
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from ropewalk.calls.trees import inner_path, kind_of, parts_of, words_of
from ropewalk.quantities import counted

#: Positional ones and those by name.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Merging(abc.ABC):
    """A way to make one call of many."""

    #: What is said to the caller of a call that does not fit.
    advice: str

    @abc.abstractmethod
    def form(self, value: Any) -> Hashable:
        """What must be equal in all calls of a batch."""

    @abc.abstractmethod
    def size(self, call: Arguments) -> int:
        """How much of a batch a call is, in the unit of `max_size`.

        Raises:
            ValueError: it cannot be part of one.
        """

    @abc.abstractmethod
    def merge(self, calls: Sequence[Arguments]) -> Arguments:
        """The arguments of the one call that stands for these, one or more, which fit together."""

    @abc.abstractmethod
    def divide(self, result: Any, sizes: Sequence[int]) -> list[Any]:
        """What each of the calls gets of the result of their batch.

        Raises:
            ValueError: a part of the result has another length than the batch.
            TypeError: a part of the result is nothing that can be taken apart.
        """

    def split_compatible(self, calls: Sequence[Arguments]) -> tuple[list[int], dict[int, ValueError]]:
        """Which of these calls can be one batch, and for each of the others an error that says why not.

        The batch is what most of them agree on; if two forms are as frequent, the one that came first.
        """
        odd: dict[int, ValueError] = {}
        for index, call in enumerate(calls):
            try:
                self.size(call)
            except ValueError as error:
                odd[index] = error
        forms = {index: self.form(call) for index, call in enumerate(calls) if index not in odd}
        if len(set(forms.values())) <= 1:
            return list(forms), odd
        chosen = Counter(forms.values()).most_common(1)[0][0]  # of equals, the first
        fitting = [index for index, form in forms.items() if form == chosen]
        model = calls[fitting[0]]
        for index, form in forms.items():
            if form != chosen:
                odd[index] = ValueError(
                    f"this call does not fit into a batch with {counted(len(fitting), 'other')}: "
                    f"{self._difference(calls[index], model)}; {self.advice}"
                )
        return fitting, odd

    def groups(self, calls: Sequence[Arguments], most: int) -> list[list[int]]:
        """Which calls, by index and in order, go together if so much is a batch at most; a larger one goes alone."""
        groups: list[list[int]] = []
        left = 0
        for index, call in enumerate(calls):
            size = self.size(call)
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


__all__ = ["Arguments", "Merging"]
