"""Candidates for a stage that cost no more than any real one: `exact`'s program over them gives a lower bound.

Cuts are told apart only by their block and by the work before them, in small steps. Of each
such class all down-closed parts of the block are looked at (of a block with too many, none):
for the least and the most that lies before such a cut, and the least that crosses it. A
stage between two classes then costs at least the least of the later one less the most of
the earlier one:

    class of I: work 3.1 .. 3.2, weights 7 .. 9     stage I to J: work at least 4.0 - 3.2,
    class of J: work 4.0 .. 4.1, weights 12 .. 13                weights at least 12 - 9

Strays (see `blocks`) cost nothing here, and memory is only that of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.pipeline.down_sets import BitGraph, members
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.exact_search.blocks import BlockDownSets
from ropewalk.pipeline.partitioners.exact_search.candidates import Candidates, Flags, Floats


@dataclass(frozen=True, slots=True)
class _Amounts:
    """Of each operator."""

    work_s: Floats
    backward_s: Floats
    least_weights: Floats
    """Its own parameters without tied ones, and with all."""
    most_weights: Floats
    values: Floats
    gradients: Floats


@dataclass(frozen=True, slots=True)
class _Class:
    """What is known of the cuts of one class."""

    block: int
    at_start: bool
    """Whether it is only the cut behind the block's first articulation point."""
    work_s: tuple[float, float]
    backward_s: float
    least_weights: float
    most_weights: float
    received: tuple[float, float]
    """Least bytes of values, and of their gradients, that a stage behind it receives if it reaches into another block.
    """
    sent: tuple[float, float]
    """Least bytes that a stage before it sends: if it begins at the start of the block, and if it begins before."""
    sent_from_before: tuple[float, float]


def relaxed_candidates(
    costs: OperatorCosts, graph: BitGraph, parts: Sequence[BlockDownSets], again: bool, num_classes: int
) -> Candidates:
    """Pairs of about `num_classes` classes of cuts; `again`: all stages run their forward twice."""
    amounts = _amounts(costs, again)
    step_s = float(amounts.work_s.sum()) / num_classes or 1.0
    classes = [found for number, of in enumerate(parts) for found in _classes(graph, amounts, number, of, step_s)]
    num = len(classes)
    before, after = np.nonzero(np.triu(np.ones((num, num), dtype=np.bool_)))
    ends = np.array([found.block for found in classes])
    at_start = np.array([found.at_start for found in classes])
    apart, from_start = ends[before] < ends[after], (ends[before] == ends[after]) & at_start[before]

    def column(values: list[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    def between(least: list[float], most: list[float]) -> Floats:
        return np.maximum(0.0, column(least)[after] - column(most)[before])

    def received(kind: int) -> Floats:
        return column([found.received[kind] for found in classes])[before] * apart

    def sent(kind: int) -> Floats:
        near = column([found.sent[kind] for found in classes])[after] * from_start
        return near + column([found.sent_from_before[kind] for found in classes])[after] * apart

    nothing = np.zeros(len(before))
    strays_s = float(amounts.backward_s[list(members(parts[0].block.strays))].sum())
    return Candidates(
        sets=range(num),
        before=before,
        after=after,
        forward_s=nothing,
        backward_s=between([found.work_s[0] for found in classes], [found.work_s[1] for found in classes]),
        in_bytes=received(0),
        in_gradient_bytes=received(1),
        out_bytes=sent(0),
        out_gradient_bytes=sent(1),
        kept_bytes=nothing,
        weight_bytes=between([found.least_weights for found in classes], [found.most_weights for found in classes]),
        buffer_bytes=nothing,
        saved_bytes=nothing,
        held_bytes=nothing,
        earlier_s=column([found.backward_s for found in classes])[before] + strays_s,
        computes=np.ones(len(before), dtype=np.bool_),
        splits_tie=np.zeros(len(before), dtype=np.bool_),
    )


def _amounts(costs: OperatorCosts, again: bool) -> _Amounts:
    forward_s = np.array([operator.forward_s for operator in costs.operators])
    backward_s = np.array(costs.backward_s)
    weights = [np.zeros(len(forward_s)), np.zeros(len(forward_s))]
    for readers, size_bytes in costs.weight_bytes:
        weights[1][list(readers)] += size_bytes
        if len(readers) == 1:
            weights[0][readers[0]] += size_bytes
    return _Amounts(
        work_s=forward_s * (2.0 if again else 1.0) + backward_s,
        backward_s=backward_s,
        least_weights=weights[0],
        most_weights=weights[1],
        values=np.array([operator.output_bytes for operator in costs.operators], dtype=np.float64),
        gradients=np.array(costs.gradient_bytes, dtype=np.float64),
    )


def _classes(graph: BitGraph, amounts: _Amounts, number: int, parts: BlockDownSets, step_s: float) -> list[_Class]:
    block, inside = parts.block, list(parts.inside)
    before = list(members(block.before))
    work_s, backward_s = parts.sums(amounts.work_s), parts.sums(amounts.backward_s)
    least, most = parts.sums(amounts.least_weights), parts.sums(amounts.most_weights)
    crossing = [_crossing(graph, parts, of) for of in (amounts.values, amounts.gradients)]
    cells = np.floor(work_s / step_s).astype(np.intp)
    cells[0] = -1  # the part of nothing: the cut right behind the articulation point
    found: list[_Class] = []
    for cell in np.unique(cells):
        of = cells == cell

        def least_of(kind: int, which: int, of: Flags = of) -> float:
            return float(crossing[kind][which][of].min())

        found.append(
            _Class(
                number,
                bool(cell == -1),
                (float(work_s[of].min()), float(work_s[of].max())),
                float(backward_s[of].max()),
                float(least[of].min()),
                float(most[of].max()),
                (least_of(0, 0), least_of(1, 0)),
                (least_of(0, 1), least_of(1, 1)),
                (least_of(0, 2), least_of(1, 2)),
            )
        )
    if not parts.complete:

        def whole(of: Floats) -> float:
            return float(of[before].sum() + of[inside].sum())

        first = found[0]
        nothing = (0.0, 0.0)
        found.append(
            _Class(
                number,
                False,
                (first.work_s[0], whole(amounts.work_s)),
                whole(amounts.backward_s),
                first.least_weights,
                whole(amounts.most_weights),
                nothing,
                nothing,
                nothing,
            )
        )
    return found


def _crossing(graph: BitGraph, parts: BlockDownSets, amounts: Floats) -> tuple[Floats, Floats, Floats]:
    """Of each part: what is read behind it up to the block's end; what of it is read outside; that, with the start."""
    block, num = parts.block, len(parts.masks)
    received, sent, sent_with_start = np.zeros(num), np.zeros(num), np.zeros(num)
    for number in (*members(block.inside), *([block.start] if block.start >= 0 else [])):
        core = graph.targets[number] & ~block.strays
        read_inside = parts.leaves_out(core)
        ends_block = bool(block.end >= 0 and core >> block.end & 1)
        outside = bool(core & ~block.inside)
        is_in = np.ones(num, dtype=np.bool_)
        if number != block.start:
            is_in = parts.holds(number)
            sent += amounts[number] * (is_in & (read_inside | outside))
        received += amounts[number] * (is_in & (read_inside | ends_block))
        sent_with_start += amounts[number] * (is_in & (read_inside | outside))
    return received, sent, sent_with_start
