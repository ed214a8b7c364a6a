"""Candidates for a stage: all pairs of nested sets of a family of down-closed sets, and what lies between them costs.

    sets    {} ⊂ a ⊂ b, c ⊂ everything      b and c are not nested
    pairs   ({}, a) ({}, b) ({}, c) ({}, all) (a, b) (a, c) (a, all) (b, all) (c, all)
             └── those that begin at one set stand together

Costs of sets are sums; of pairs they are differences of those, and only what several
operators share (a value that many read, a tied parameter) is looked at pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.pipeline.down_sets import BitGraph, members
from ropewalk.pipeline.operator_costs import OperatorCosts

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs of nested sets, ordered by the set before and then by the set after; the fields of StageCost for each."""

    sets: Sequence[int]
    before: Ints
    after: Ints
    forward_s: Floats
    backward_s: Floats
    in_bytes: Floats
    in_gradient_bytes: Floats
    out_bytes: Floats
    out_gradient_bytes: Floats
    kept_bytes: Floats
    weight_bytes: Floats
    buffer_bytes: Floats
    saved_bytes: Floats
    held_bytes: Floats
    earlier_s: Floats
    """Backward seconds of the set before."""
    computes: Flags
    """Whether anything is computed: a stage of inputs only is none."""
    splits_tie: Flags
    """Whether it shares a parameter with another stage."""

    @property
    def num_sets(self) -> int:
        """How many sets there are."""
        return len(self.sets)


def candidates(costs: OperatorCosts, graph: BitGraph, sets: Sequence[int]) -> Candidates:
    """Pair up sets in the order of `down_sets`: the empty set first, all operators last."""
    num = len(graph.sources)
    inside = membership(sets, num)
    sizes = inside.sum(axis=1)
    nested = (inside @ inside.T == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
    before, after = np.nonzero(nested)
    operators = costs.operators
    values = np.array([operator.output_bytes for operator in operators], dtype=np.float64)
    gradients = np.array(costs.gradient_bytes, dtype=np.float64)
    is_input = np.array([operator.is_input for operator in operators])

    def between(amounts: Iterable[float]) -> Floats:
        """Of amounts of operators, the sums over what lies between the sets of each pair."""
        totals = (inside * np.array(tuple(amounts), dtype=np.float64)).sum(axis=1)
        return totals[after] - totals[before]

    def shared(parts: Iterable[tuple[Sequence[int], float]]) -> Floats:
        """Of amounts that several operators share, the sums over those that one between the sets has a part in."""
        single, several = np.zeros(num), np.zeros((len(sets), len(sets)))
        for numbers, amount in parts:
            if len(numbers) == 1:
                single[numbers[0]] += amount
            else:
                count = inside[:, list(numbers)].sum(axis=1)
                several += amount * (count[None, :] > count[:, None])
        return between(single) + several[before, after]

    readers = [list(members(ends)) for ends in graph.targets]
    counts = np.stack([inside[:, ends].sum(axis=1) for ends in readers], axis=1)
    crosses = inside * (counts < np.array([len(ends) for ends in readers]))  # whether a value is read outside a set
    in_bytes = _received(inside, readers, values)[before, after]
    same = bool((values == gradients).all())

    def sent(amounts: Floats) -> Floats:
        return ((1 - inside) @ (crosses * amounts).T)[before, after]

    return Candidates(
        sets=sets,
        before=before,
        after=after,
        forward_s=between(operator.forward_s for operator in operators),
        backward_s=between(costs.backward_s),
        in_bytes=in_bytes,
        in_gradient_bytes=in_bytes if same else _received(inside, readers, gradients)[before, after],
        out_bytes=sent(values),
        out_gradient_bytes=sent(gradients),
        kept_bytes=in_bytes + between(values * is_input),
        weight_bytes=shared(costs.weight_bytes),
        buffer_bytes=between(operator.buffer_bytes for operator in operators),
        saved_bytes=between(costs.own_bytes) + shared(costs.shared_bytes),
        held_bytes=between(costs.held_bytes) + shared(costs.held_shared_bytes),
        earlier_s=(inside * np.array(costs.backward_s)).sum(axis=1)[before],
        computes=between(1.0 - is_input) > 0,
        splits_tie=_split_ties(costs, inside)[before, after],
    )


def _split_ties(costs: OperatorCosts, inside: Floats) -> Flags:
    """For each pair of sets, whether some but not all operators that share a parameter lie between them."""
    splits = np.zeros((len(inside), len(inside)), dtype=np.bool_)
    for numbers, _ in costs.weight_bytes:
        if len(numbers) > 1:
            count = inside[:, list(numbers)].sum(axis=1)
            more = count[None, :] - count[:, None]
            splits |= (more > 0) & (more < len(numbers))
    return splits


def membership(sets: Sequence[int], num: int) -> Floats:
    """A row for each set, with 1.0 for each member."""
    width = (num + 7) // 8
    rows = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in sets), dtype=np.uint8)
    return np.unpackbits(rows.reshape(len(sets), width), axis=1, bitorder="little")[:, :num].astype(np.float64)


def _received(inside: Floats, readers: Sequence[Sequence[int]], amounts: Floats) -> Floats:
    """For each two sets, the values of the one (or their gradients) that what the other has beside it reads."""
    by_reader = np.zeros_like(inside)  # what a set would send to each operator outside, if that is its only reader
    several: list[int] = []
    for number, ends in enumerate(readers):
        if len(ends) == 1:
            by_reader[:, ends[0]] += amounts[number] * inside[:, number]
        elif amounts[number] and ends:
            several.append(number)
    found = (by_reader * (1 - inside)) @ inside.T
    for number in several:
        rows = np.nonzero(inside[:, number])[0]
        count = inside[:, readers[number]].sum(axis=1)
        found[rows] += amounts[number] * (count[None, :] > count[rows, None])
    return found


def crossing_bytes(costs: OperatorCosts, graph: BitGraph, sets: Sequence[int]) -> Floats:
    """For each set the bytes of all values that are read outside it, without the model's inputs."""
    num = len(graph.sources)
    inside = membership(sets, num)
    found = np.zeros(len(sets))
    for number, operator in enumerate(costs.operators):
        if not operator.is_input and operator.output_bytes:
            ends = list(members(graph.targets[number]))
            read_outside = inside[:, ends].sum(axis=1) < len(ends)
            found += operator.output_bytes * inside[:, number] * read_outside
    return found
