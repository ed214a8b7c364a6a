"""The states of PipeDream's search: the places where its optimizer may cut a graph (msr-fiddle/pipedream, `graph.py`).

A state is an antichain: the last operators of the covered ones, which form a down-closed set. The
first state covers the first operator without sources. Each further state adds one operator that
reads a covered one, and all operators that it needs:

    a ──▶ b ──▶ d        {a} ──▶ {a b} ──▶ {a b c} ──▶ {a b c d}
    └───▶ c ─────┘        └────▶ {a c} ──────┘             ▲
                                   └── also from {a b} ────┘  (d brings c, which it needs)

So one state can follow another exactly if it covers more, and the difference is a possible stage.
Unlike down-closed sets in general, each state is connected to the first operator, since PipeDream
expands only the first source.

As in PipeDream, inputs of the model and calls of `__getitem__` without readers are left out.
Operators that neither lead to nor come from the first source's successors are in no state either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import NoPlanFits, ProfileInvalid
from ropewalk.pipeline.down_sets import members
from ropewalk.pipeline.profiles import Operator, Profile

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class OperatorGraph:
    """The operators between which PipeDream cuts, as bit sets: operator i is `1 << i`."""

    operators: tuple[Operator, ...]
    targets: tuple[int, ...]
    """For each operator, the operators that read it."""
    needed: tuple[int, ...]
    """For each operator, itself and all operators that it needs, directly or indirectly."""
    affected: tuple[int, ...]
    """For each operator, the operators that read it or an operator that it needs."""

    @classmethod
    def of(cls, profile: Profile) -> OperatorGraph:
        """Return the graph that PipeDream would search for a profile.

        Raises:
            ProfileInvalid: all operators are inputs.
        """
        taken = tuple(operator for operator in profile.operators if not _is_left_out(profile, operator))
        if not taken:
            raise ProfileInvalid(
                f"none of the {len(profile.operators)} operators is more than an input; there is nothing to cut"
            )
        bit_of = {operator.id: 1 << number for number, operator in enumerate(taken)}
        targets = {id: _union(bit_of.get(target, 0) for target in profile.targets[id]) for id in bit_of}
        needed: dict[str, int] = {}
        affected: dict[str, int] = {}
        for id in profile.order:
            if id in bit_of:
                sources = [source for source in profile.sources[id] if source in bit_of]
                needed[id] = _union(needed[source] for source in sources) | bit_of[id]
                affected[id] = _union(affected[source] for source in sources) | targets[id]
        return cls(
            taken,
            tuple(targets.values()),
            tuple(needed[id] for id in bit_of),
            tuple(affected[id] for id in bit_of),
        )

    @cached_property
    def start(self) -> int:
        """The first state: the first operator that reads no other one."""
        return next(needed for number, needed in enumerate(self.needed) if needed == 1 << number)

    @cached_property
    def everything(self) -> int:
        """The last state, as a bit set."""
        covered, frontier = self.start, self.affected[self.start.bit_length() - 1] & ~self.start
        while frontier:
            covered |= _union(self.needed[number] for number in members(frontier))
            frontier = _union(self.affected[number] for number in members(frontier)) & ~covered
        return covered

    def only_last(self) -> States:
        """Return the last state alone."""
        return States(self, self._as_rows([self.everything]))

    def states(self, limit: int) -> States:
        """Return all states.

        Args:
            limit: most states to return.

        Raises:
            NoPlanFits: there are more than `limit`.
        """
        frontiers = {self.start: self.affected[self.start.bit_length() - 1] & ~self.start}
        waiting = list(frontiers)
        for state in waiting:  # the loop appends to it
            for number in members(frontiers[state]):
                following = state | self.needed[number]
                if following not in frontiers:
                    frontiers[following] = (frontiers[state] | self.affected[number]) & ~following
                    waiting.append(following)
            if len(waiting) > limit:
                raise NoPlanFits(
                    f"this graph of {len(self.operators)} operators has more than {limit} antichains, and PipeDream's "
                    f"search goes through all of them; use the partitioner 'exact', which bounds its search, or raise "
                    f"max_states",
                    needed=len(waiting),
                    available=limit,
                )
        waiting.sort(key=lambda state: (state.bit_count(), state))
        return States(self, self._as_rows(waiting))

    def _as_rows(self, sets: Iterable[int]) -> Booleans:
        """The bit sets as an array of shape [set, operator]."""
        num_bytes = (len(self.operators) + 7) // 8
        packed = np.frombuffer(b"".join(bits.to_bytes(num_bytes, "little") for bits in sets), np.uint8)
        rows = np.unpackbits(packed.reshape(-1, num_bytes), axis=1, bitorder="little")
        return rows[:, : len(self.operators)].astype(bool)

    @cached_property
    def read_by(self) -> Booleans:
        """[source, target]: whether target reads source."""
        return self._as_rows(self.targets)

    @cached_property
    def kept_for(self) -> Booleans:
        """[a, p]: whether a needs p, and p is also read by an operator that a does not need."""
        needs = self._as_rows(self.needed)
        num_needed_readers = needs.astype(np.float32) @ self.read_by.T.astype(np.float32)
        kept = needs & (num_needed_readers < self.read_by.sum(axis=1))
        np.fill_diagonal(kept, val=False)
        return kept


@dataclass(frozen=True)
class States:
    """All states, smaller ones first; arrays have one entry for each state."""

    graph: OperatorGraph
    covered: Booleans
    """[state, operator]: whether the state covers the operator."""

    def __len__(self) -> int:
        return len(self.covered)

    def some(self, numbers: NDArray[np.intp]) -> States:
        """Return a subset of the states.

        Args:
            numbers: indices of the states to keep.
        """
        return States(self.graph, self.covered[numbers])

    def alike(self) -> tuple[States, States]:
        """Group states that differ only in operators without time and bytes.

        Returns:
            The largest state of each group, and a bound for each group: a state that costs no more than any state of
            the group, and that can follow another bound wherever any states of the two groups follow each other.
        """
        matters = np.array(
            [
                bool(operator.forward_s or operator.backward_s or operator.output_bytes or operator.parameter_bytes)
                for operator in self.graph.operators
            ]
        )
        _, first, class_of = np.unique(self.covered[::-1, matters], axis=0, return_index=True, return_inverse=True)
        largest = np.sort(len(self) - 1 - first)
        place = {int(class_of[len(self) - 1 - state]): number for number, state in enumerate(largest)}
        numbers = np.array([place[int(number)] for number in class_of[::-1]])

        def least(amounts: Floats) -> Floats:
            found = np.full(len(largest), np.inf)
            np.minimum.at(found, numbers, amounts)
            return found

        bounds = _StateClasses(
            self.graph, self.covered[largest], matters, least(self.augmented_bytes), least(self.crossing_bytes)
        )
        return self.some(largest), bounds

    @cached_property
    def work_s(self) -> Floats:
        """Seconds of forward and backward of the covered operators, on a device of speed 1."""
        return self.covered.astype(np.float64) @ np.array(
            [operator.forward_s + operator.backward_s for operator in self.graph.operators]
        )

    @cached_property
    def weight_bytes(self) -> Floats:
        """Bytes of the parameters of the covered operators."""
        return self.covered.astype(np.float64) @ np.array(
            [float(operator.parameter_bytes) for operator in self.graph.operators]
        )

    @cached_property
    def activation_bytes(self) -> Floats:
        """Bytes of all values of the covered operators."""
        return self.covered.astype(np.float64) @ self._value_bytes

    @cached_property
    def crossing_bytes(self) -> Floats:
        """Bytes of the covered values that operators outside the state read."""
        crossing = self.covered & (self._num_covered_readers < self.graph.read_by.sum(axis=1))
        return crossing.astype(np.float64) @ self._value_bytes

    @cached_property
    def augmented_bytes(self) -> Floats:
        """Bytes of the values of PipeDream's augmented antichain.

        It has the last operators, and for each of them the operators that it needs and that are also read by an
        operator that it does not need, even if the state covers that reader too. So the bytes include all values that
        cross, and sometimes more.
        """
        last = self.covered & (self._num_covered_readers == 0)
        kept = (last.astype(np.float32) @ self.graph.kept_for.astype(np.float32)) > 0
        return (last | kept).astype(np.float64) @ self._value_bytes

    @cached_property
    def nested(self) -> Booleans:
        """[state, larger]: whether the second state covers all operators of the first, and more."""
        return _nested(self.covered)

    @staticmethod
    def between(amounts: Floats) -> Floats:
        """Return the differences of cumulative amounts, of shape [start, state].

        Args:
            amounts: one amount for each state. Start 0 is the empty set, start i + 1 is state i.
        """
        return amounts[None, :] - np.append(0.0, amounts[:-1])[:, None]

    @cached_property
    def _value_bytes(self) -> Floats:
        return np.array([float(operator.output_bytes) for operator in self.graph.operators])

    @cached_property
    def _num_covered_readers(self) -> NDArray[np.float32]:
        """[state, operator]: the number of the operator's readers that the state covers."""
        return self.covered.astype(np.float32) @ self.graph.read_by.T.astype(np.float32)


@dataclass(frozen=True)
class _StateClasses(States):
    """One state for each group of states that `alike` finds."""

    matters: Booleans
    least_augmented_bytes: Floats
    least_crossing_bytes: Floats

    @cached_property
    def augmented_bytes(self) -> Floats:
        return self.least_augmented_bytes

    @cached_property
    def crossing_bytes(self) -> Floats:
        return self.least_crossing_bytes

    @cached_property
    def nested(self) -> Booleans:
        return _nested(self.covered[:, self.matters])


def _nested(covered: Booleans) -> Booleans:
    rows = covered.astype(np.float32)
    sizes = rows.sum(axis=1)
    return (rows @ rows.T == sizes[:, None]) & (sizes[:, None] < sizes[None, :])


def _is_left_out(profile: Profile, operator: Operator) -> bool:
    if operator.is_input or (not profile.sources[operator.id] and operator.description.startswith("Input")):
        return True
    return not profile.targets[operator.id] and operator.description.startswith("__getitem__")


def _union(sets: Iterable[int]) -> int:
    union = 0
    for bits in sets:
        union |= bits
    return union
