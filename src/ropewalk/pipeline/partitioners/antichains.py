"""The states of PipeDream's search: where its optimizer may cut a graph (msr-fiddle/pipedream, `graph.py`).

A state is an antichain: the last operators of what has been covered, which is a down-closed set.
The first state covers the first operator without sources. From a state, one more operator that
reads a covered one is taken, and with it whatever it needs:

    a ──▶ b ──▶ d        {a} ──▶ {a b} ──▶ {a b c} ──▶ {a b c d}
    └───▶ c ─────┘        └────▶ {a c} ──────┘             ▲
                                   └── also from {a b} ────┘  (d brings c, which it needs)

So one state can follow another exactly if it covers more, and its difference is a possible stage.
Unlike down-closed sets at large, each state is connected to the first operator, as PipeDream
expands only the first source.

Left out, as there: inputs of the model, and `__getitem__` of which nobody reads anything. Operators
that neither lead to nor come from the first source's successors are in no state either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import NoPlanFits, ProfileInvalid
from ropewalk.pipeline.profiles import Operator, Profile

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class OperatorGraph:
    """The operators that PipeDream cuts between, as bit sets: operator i is `1 << i`."""

    operators: tuple[Operator, ...]
    #: Of each operator: those who read it.
    targets: tuple[int, ...]
    #: Of each operator: itself and all it needs, directly or not.
    needed: tuple[int, ...]
    #: Of each operator: those who read it or something it needs.
    affected: tuple[int, ...]

    @classmethod
    def of(cls, profile: Profile) -> OperatorGraph:
        """What PipeDream keeps of a profile.

        Raises:
            ProfileInvalid: there is nothing but inputs.
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
        """The first state: the first operator that reads no other."""
        return next(needed for number, needed in enumerate(self.needed) if needed == 1 << number)

    @cached_property
    def everything(self) -> int:
        """The last state."""
        covered, frontier = self.start, self.affected[self.start.bit_length() - 1] & ~self.start
        while frontier:
            covered |= _union(self.needed[number] for number in _numbers(frontier))
            frontier = _union(self.affected[number] for number in _numbers(frontier)) & ~covered
        return covered

    def only_last(self) -> States:
        """The last state alone."""
        return States(self, self._as_rows([self.everything]))

    def states(self, limit: int) -> States:
        """All states.

        Raises:
            NoPlanFits: there are more than the limit.
        """
        frontiers = {self.start: self.affected[self.start.bit_length() - 1] & ~self.start}
        waiting = list(frontiers)
        for state in waiting:  # grows
            for number in _numbers(frontiers[state]):
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
        """One row for each bit set, one column for each operator."""
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
    """All states, smaller ones first; arrays have one entry for each."""

    graph: OperatorGraph
    #: [state, operator]: whether the state covers it.
    covered: Booleans

    def __len__(self) -> int:
        return len(self.covered)

    def some(self, numbers: NDArray[np.intp]) -> States:
        """These of the states alone."""
        return States(self.graph, self.covered[numbers])

    def alike(self) -> tuple[States, States]:
        """The largest of all states that cover the same but for operators without time and bytes; and bounds for them.

        The bounds are states that cost no more than any that is alike, and that follow one another wherever any do.
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
        """Seconds of forward and backward of what is covered, on a device of speed 1."""
        return self.covered.astype(np.float64) @ np.array(
            [operator.forward_s + operator.backward_s for operator in self.graph.operators]
        )

    @cached_property
    def weight_bytes(self) -> Floats:
        """Bytes of the parameters of what is covered."""
        return self.covered.astype(np.float64) @ np.array(
            [float(operator.parameter_bytes) for operator in self.graph.operators]
        )

    @cached_property
    def activation_bytes(self) -> Floats:
        """Bytes of all values of what is covered."""
        return self.covered.astype(np.float64) @ self._value_bytes

    @cached_property
    def crossing_bytes(self) -> Floats:
        """Bytes of the covered values that operators behind the state read."""
        crossing = self.covered & (self._num_covered_readers < self.graph.read_by.sum(axis=1))
        return crossing.astype(np.float64) @ self._value_bytes

    @cached_property
    def augmented_bytes(self) -> Floats:
        """Bytes of the values of PipeDream's augmented antichain.

        These are the last operators, and for each of them those it needs that an operator beside its own past reads,
        even if the state covers that one too: so it counts all that crosses, and sometimes more.
        """
        last = self.covered & (self._num_covered_readers == 0)
        kept = (last.astype(np.float32) @ self.graph.kept_for.astype(np.float32)) > 0
        return (last | kept).astype(np.float64) @ self._value_bytes

    @cached_property
    def nested(self) -> Booleans:
        """[state, larger]: whether the larger covers all of the state, and more."""
        return _nested(self.covered)

    @staticmethod
    def between(amounts: Floats) -> Floats:
        """[start, state]: what lies between, of amounts that add up. Start 0 is nothing, start i + 1 is state i."""
        return amounts[None, :] - np.append(0.0, amounts[:-1])[:, None]

    @cached_property
    def _value_bytes(self) -> Floats:
        return np.array([float(operator.output_bytes) for operator in self.graph.operators])

    @cached_property
    def _num_covered_readers(self) -> NDArray[np.float32]:
        """[state, operator]: how many of those who read it are covered."""
        return self.covered.astype(np.float32) @ self.graph.read_by.T.astype(np.float32)


@dataclass(frozen=True)
class _StateClasses(States):
    """One state for each class of states that are alike."""

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


def _numbers(bits: int) -> Iterator[int]:
    """The operators in a set, in order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
