"""The operators of a profile as planners count them, and the cost of a set of operators on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ropewalk.pipeline.profiles import Operator, Profile


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of a set of operators for one micro-batch on a device of speed 1."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    in_bytes: float = 0.0
    """Values of earlier stages that the set reads, and the gradients that it sends back for them."""
    in_gradient_bytes: float = 0.0
    out_bytes: float = 0.0
    """Values of the set that later stages read, and the gradients that come back."""
    out_gradient_bytes: float = 0.0
    kept_bytes: float = 0.0
    """Values needed to run the forward again: `in_bytes`, and the model's inputs among the operators."""
    weight_bytes: float = 0.0
    buffer_bytes: float = 0.0
    saved_bytes: float = 0.0
    """Bytes kept from forward to backward, each value once."""
    held_bytes: float = 0.0
    """Bytes kept from the first half of a split backward to the second."""


@dataclass(frozen=True)
class OperatorCosts:
    """The operators of a profile as a planner counts them, numbered in topological order."""

    profile: Profile
    splits_backward: bool = False

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators in topological order."""
        return tuple(self.profile.by_id[id] for id in self.profile.order)

    @cached_property
    def backward_s(self) -> tuple[float, ...]:
        """Seconds of each backward: the sum of its halves where the schedule splits it and both were measured."""
        return tuple(self._backward_s(operator) for operator in self.operators)

    def _backward_s(self, operator: Operator) -> float:
        if self.splits_backward and operator.has_split_backward:
            return (operator.input_gradient_s or 0.0) + (operator.weight_gradient_s or 0.0)
        return operator.backward_s

    @cached_property
    def gradient_bytes(self) -> tuple[int, ...]:
        """Bytes of the gradient of each value."""
        return tuple(operator.returned_bytes for operator in self.operators)

    @cached_property
    def own_bytes(self) -> tuple[int, ...]:
        """Bytes that each operator keeps for its backward in storages that no other operator keeps."""
        return tuple(
            (operator.output_bytes if operator.saved_bytes is None else operator.saved_bytes)
            for operator in self.operators
        )

    @cached_property
    def held_bytes(self) -> tuple[int, ...]:
        """Bytes that each operator keeps between the halves of its backward, without those of `held_shared_bytes`.

        If the halves were not measured: nothing without parameters, since all of the backward is then in the first
        half; else all bytes that it keeps.
        """
        return tuple(
            own if self._holds_all(operator) else operator.held_bytes if self.splits_backward else 0
            for operator, own in zip(self.operators, self.own_bytes, strict=True)
        )

    def _holds_all(self, operator: Operator) -> bool:
        """Whether the second half of an operator's backward may need all that it keeps, for all that is known."""
        return self.splits_backward and bool(operator.parameters) and not operator.has_split_backward

    @cached_property
    def shared_bytes(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Values that operators keep: the numbers of these operators, and the bytes of the value."""
        return self._saved_by(tuple(range(len(self.operators))))

    @cached_property
    def held_shared_bytes(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """The same for values that are kept to the second half of a backward whose halves were not measured."""
        return self._saved_by(tuple(n for n, operator in enumerate(self.operators) if self._holds_all(operator)))

    def _saved_by(self, numbers: Sequence[int]) -> tuple[tuple[tuple[int, ...], int], ...]:
        savers: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        for number in numbers:
            for saved in self.operators[number].saved:
                savers.setdefault(saved.operator, []).append(number)
                sizes[saved.operator] = max(saved.size_bytes, sizes.get(saved.operator, 0))
        return tuple((tuple(numbers), sizes[id]) for id, numbers in savers.items())

    @cached_property
    def weight_bytes(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Parameters: the numbers of the operators that read each one, and its bytes."""
        readers: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        for number, operator in enumerate(self.operators):
            for name, size_bytes in operator.parameters.items():
                readers.setdefault(name, []).append(number)
                sizes[name] = max(size_bytes, sizes.get(name, 0))
        return tuple((tuple(numbers), sizes[name]) for name, numbers in readers.items())

    @cached_property
    def _weights(self) -> _Parts:
        return _Parts.of(self.weight_bytes)

    @cached_property
    def _shared(self) -> _Parts:
        return _Parts.of(self.shared_bytes)

    @cached_property
    def _held_shared(self) -> _Parts:
        return _Parts.of(self.held_shared_bytes)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """The number of each operator."""
        return {id: number for number, id in enumerate(self.profile.order)}

    def stage(self, ids: Sequence[str]) -> StageCost:
        """Compute the cost of a stage of these operators.

        Args:
            ids: ids of the operators.
        """
        inside = {self.number_of[id] for id in ids}
        read = {self.number_of[source] for id in ids for source in self.profile.sources[id]} - inside
        left = [
            number
            for number in inside
            if any(self.number_of[target] not in inside for target in self.profile.targets[self.operators[number].id])
        ]
        in_bytes = sum(self.operators[number].output_bytes for number in read)
        return StageCost(
            forward_s=math.fsum(self.operators[number].forward_s for number in inside),
            backward_s=math.fsum(self.backward_s[number] for number in inside),
            in_bytes=in_bytes,
            in_gradient_bytes=sum(self.gradient_bytes[number] for number in read),
            out_bytes=sum(self.operators[number].output_bytes for number in left),
            out_gradient_bytes=sum(self.gradient_bytes[number] for number in left),
            kept_bytes=in_bytes
            + sum(self.operators[number].output_bytes for number in inside if self.operators[number].is_input),
            weight_bytes=self._weights.sum(inside),
            buffer_bytes=sum(self.operators[number].buffer_bytes for number in inside),
            saved_bytes=sum(self.own_bytes[number] for number in inside) + self._shared.sum(inside),
            held_bytes=sum(self.held_bytes[number] for number in inside) + self._held_shared.sum(inside),
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Amounts that belong to one operator, or to several operators together."""

    own: dict[int, int]
    several: tuple[tuple[tuple[int, ...], int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[tuple[int, ...], int]]) -> _Parts:
        own: dict[int, int] = {}
        for numbers, amount in parts:
            if len(numbers) == 1:
                own[numbers[0]] = own.get(numbers[0], 0) + amount
        return cls(own, tuple(part for part in parts if len(part[0]) > 1))

    def sum(self, inside: set[int]) -> int:
        """Return the sum of all amounts that belong to at least one of these operators."""
        shared = sum(amount for numbers, amount in self.several if not inside.isdisjoint(numbers))
        return sum(self.own.get(number, 0) for number in inside) + shared
