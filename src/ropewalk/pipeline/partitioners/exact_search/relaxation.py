"""A bound on the slowest stage: `exact`'s program with free links, unlimited memory, and work that divides anywhere.

A cut is only known by the work x before it. The weights before it lie between two curves:

    weights │        ┌──── most, of a down-closed set of at most that work
            │     ┌──┘ ┌── least, of one of at least that work
            │  ┌──┘┌───┘
            └──┴───┴──────── x

Between articulation points the curves are those of a fractional knapsack over the operators
there; at them they meet. So a stage from x to y weighs at least least(y) - most(x), and a
plan that keeps up with T gets, from the end, at most to where each stage costs T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ropewalk.pipeline.cost import further_rounds, reduce_s, update_pieces
from ropewalk.pipeline.down_sets import BitGraph, members
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.exact_search.blocks import blocks
from ropewalk.pipeline.partitioners.exact_search.candidates import Floats
from ropewalk.pipeline.partitioners.exact_search.placement import Move, Moves, PlacementState
from ropewalk.pipeline.partitioners.partitioner import PlanRequest

_GRID = 20_000
_PRECISION = 1e-4
"""The bound is as good as this, not better: bisection ends here."""


@dataclass(frozen=True)
class Relaxation:
    """The relaxed program of a request."""

    request: PlanRequest
    graph: BitGraph

    @cached_property
    def _costs(self) -> OperatorCosts:
        return OperatorCosts(self.request.profile, self.request.schedule.splits_backward)

    @cached_property
    def work_s(self) -> Floats:
        """Seconds of each operator."""
        again = 2.0 if self.request.recompute is True else 1.0
        forward = np.array([operator.forward_s for operator in self._costs.operators])
        return forward * again + np.array(self._costs.backward_s)

    def _weights(self, tied: bool) -> Floats:
        """Bytes of each operator's parameters, with or without those that others read too."""
        weights = np.zeros(len(self.work_s))
        for readers, size_bytes in self._costs.weight_bytes:
            if tied or len(readers) == 1:
                weights[list(readers)] += size_bytes
        return weights

    @cached_property
    def total_s(self) -> float:
        """All work."""
        return math.fsum(self.work_s)

    @cached_property
    def positions(self) -> Floats:
        """Work before a cut, from none to all."""
        return np.linspace(0.0, self.total_s, _GRID)

    def curve(self, amounts: Floats, most: bool) -> Floats:
        """By work before a cut: the most of these amounts with at most that work, or the least with at least that."""
        found = np.full(_GRID, -np.inf if most else np.inf)
        slack = self.total_s * 1e-9
        for block in blocks(self.graph):
            sure, unsure = block.before, block.inside | block.strays
            inside = np.array(list(members(sure)), dtype=np.intp)
            items = np.array(list(members(unsure)), dtype=np.intp)
            base_s, base = float(self.work_s[inside].sum()), float(amounts[inside].sum())
            work, value = self.work_s[items], amounts[items]
            ratio = value / np.maximum(work, 1e-300)
            order = np.argsort(-ratio if most else ratio, kind="stable")
            reached = base_s + np.concatenate([[0.0], np.cumsum(work[order])])
            values = base + np.concatenate([[0.0], np.cumsum(value[order])])
            if most:
                line = np.interp(self.positions + slack, reached, values)
                found = np.maximum(found, np.where(self.positions + slack < base_s, -np.inf, line))
            else:
                line = np.interp(self.positions - slack, reached, values)
                found = np.minimum(found, np.where(self.positions - slack > reached[-1], np.inf, line))
        return found

    @cached_property
    def most_weights(self) -> Floats:
        """Of a set with at most the work of each position; tied parameters count each time they are read."""
        return self.curve(self._weights(tied=True), most=True)

    @cached_property
    def least_weights(self) -> Floats:
        """Of a set with at least the work of each position; without tied parameters."""
        weights = self._weights(tied=False)
        return np.minimum(self.curve(weights, most=False), float(weights.sum()))

    # --- the slowest stage --------------------------------------------------------------------------------------------

    def least_slowest(self, moves: Moves, num_stages: int | None) -> float:
        """No plan with these moves has a slowest stage that is quicker than this."""
        low = high = self._heaviest_operator(moves)
        if low == math.inf or self._keeps_up(moves, low, num_stages):
            return low
        while not self._keeps_up(moves, high, num_stages):
            low, high = high, 2 * high + 1e-12 * self.total_s
            if high > 1e6 * (self.total_s + 1):
                return math.inf  # too few moves to come to an end
        while high > low * (1 + _PRECISION):
            middle = (low + high) / 2
            low, high = (low, middle) if self._keeps_up(moves, middle, num_stages) else (middle, high)
        return low

    def _reduce_s(self, move: Move) -> tuple[float, float]:
        """Seconds of Reduce that hold up a replica, for each micro-batch it runs: for each byte, and besides."""
        if self.request.schedule.flushes:
            return 0.0, 0.0
        level, replicas = self.request.topology.level_of(move.devices), len(move.devices)
        most, _ = update_pieces(self.request, replicas)
        besides = reduce_s(0.0, replicas, level)
        return (reduce_s(1.0, replicas, level) - besides) / most, besides / most

    def _share(self, move: Move) -> float:
        """What the plan's maximum takes of the seconds of a stage."""
        if self.request.schedule.flushes:
            return float(further_rounds(self.request.micro_batches, len(move.devices)))
        most, size = update_pieces(self.request, len(move.devices))
        return most / size

    def _heaviest_operator(self, moves: Moves) -> float:
        """Some stage runs each operator."""
        weights = self._weights(tied=True)
        least = np.full(len(weights), np.inf)
        for move in {(move.kind, move.devices): move for leaving in moves.moves for move in leaving}.values():
            per_byte, besides = self._reduce_s(move)
            speed = self.request.topology.kinds[move.kind].speed
            least = np.minimum(least, (self.work_s / speed + weights * per_byte + besides) * self._share(move))
        return float(least.max())

    def _keeps_up(self, moves: Moves, slowest: float, num_stages: int | None) -> bool:
        """Whether stages that are not slower than this reach from the end to the beginning."""
        reached: dict[PlacementState, float] = {moves.start: self.total_s}
        curves: dict[tuple[int, float], Floats] = {}
        for state, leaving in zip(moves.states, moves.moves, strict=True):
            end_s = reached.get(state)
            if end_s is None:
                continue
            place = min(int(end_s / self.total_s * (_GRID - 1)), _GRID - 1) if self.total_s else 0
            for move in leaving:
                per_byte, besides = self._reduce_s(move)
                speed = self.request.topology.kinds[move.kind].speed
                room_s = slowest / share - besides if (share := self._share(move)) else math.inf
                start_s = end_s - room_s * speed
                if per_byte:
                    key = move.kind, per_byte
                    if key not in curves:
                        curves[key] = self.positions / speed + self.most_weights * per_byte
                    needed = end_s / speed + float(self.least_weights[place]) * per_byte - room_s
                    first = int(np.searchsorted(curves[key], needed))
                    start_s = max(start_s, float(self.positions[first - 1]) if first else 0.0)
                if start_s <= end_s and room_s >= 0:
                    reached[move.before] = min(max(start_s, 0.0), reached.get(move.before, math.inf))
        return any(
            start_s <= self.total_s * 1e-9 and num_stages in (None, state.num_stages)
            for state, start_s in reached.items()
            if state != moves.start
        )
