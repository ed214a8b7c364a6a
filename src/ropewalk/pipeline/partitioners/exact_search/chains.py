"""The search for the best chain of nested sets and moves of devices: the dynamic programs of `exact`.

    A[I, d] = min over stages (I, J) and moves d' -> d of  max(slowest(I, J, move), A[J, d'])
    K[I, d] = min over those that are not slower than T of      total(I, J, move) + K[J, d']

I is what lies before a stage, J what lies before the next, d the devices that are left for
what lies before I. Both run from the last stage to the first, a whole array of I at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ropewalk.pipeline.partitioners.exact_search.candidates import Floats, Ints
from ropewalk.pipeline.partitioners.exact_search.placement import Move, Moves, PlacementState
from ropewalk.pipeline.partitioners.exact_search.stage_costs import CostOfMoves, Costs

ROUNDING = 1e-12
"""Sums in another order differ in their last bits; what is closer than this is equal."""


class Pairs(Protocol):
    """Candidates for a stage: sets by their numbers, the empty one first and all operators last."""

    @property
    def num_sets(self) -> int:
        """How many sets there are."""
        ...

    @property
    def before(self) -> Ints:
        """The set before each stage, in ascending order."""
        ...

    @property
    def after(self) -> Ints:
        """The set before the stage that follows each."""
        ...


@dataclass(frozen=True, slots=True)
class ChainStage:
    """A stage of a chain: the pair of sets, its move, and whether it recomputes."""

    before: int
    after: int
    move: Move
    recompute: bool
    slowest: float
    total: float


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages from the first to the last."""

    links: tuple[ChainStage, ...]

    @property
    def slowest(self) -> float:
        """The largest of its stages' maxima."""
        return max(link.slowest for link in self.links)

    @property
    def total(self) -> float:
        """The sum over its stages."""
        return math.fsum(link.total for link in self.links)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The pairs a move may use, without the others."""

    pairs: Ints
    after: Ints
    rows: Ints
    """The sets before them, and where the pairs of each begin."""
    starts: Ints
    slowest: Floats
    total: Floats


Combine = Callable[[_Allowed, Move, Floats], Floats]
"""What the rest of a chain and one more stage make together, for each pair that may be that stage."""


@dataclass
class ChainSearch:
    """All chains over candidates and moves."""

    candidates: Pairs
    moves: Moves
    costs: CostOfMoves
    num_stages: int | None = None
    """If given, only chains of this number of stages."""
    _bound: float = np.inf
    _allowed: dict[int, tuple[Costs, _Allowed]] = field(default_factory=dict[int, tuple[Costs, _Allowed]])
    """By the identity of costs, which are kept with them; for `_bound` only."""

    def least_slowest(self) -> float:
        """The least maximum of any chain; `inf` if there is none."""
        return self._ends(self._run(np.inf, _slowest, nothing=-np.inf))[0]

    def fewest(self, slowest: float) -> Chain | None:
        """The chain of fewest stages, then fewest devices, then earliest cuts, that is not slower than this."""
        width = self.moves.start.free
        whole = float(sum(width) + 1)

        def combine(allowed: _Allowed, move: Move, rest: Floats) -> Floats:
            return rest + (whole + len(move.devices))

        return self._best(slowest * (1 + ROUNDING) if slowest > 0 else slowest + abs(slowest) * ROUNDING, combine)

    def least_total(self, slowest: float, scale: float) -> Chain | None:
        """The chain of least sum that is not slower than this; ties as for `fewest`, where sums differ by 1e-11."""

        def combine(allowed: _Allowed, move: Move, rest: Floats) -> Floats:
            return allowed.total + (rest + scale * (1e-11 + 1e-13 * len(move.devices)))

        return self._best(slowest, combine)

    def least_slowest_of_each_form(self) -> list[Chain]:
        """For each number of stages (if moves count them) and of replicas of the first: a chain of least maximum."""
        return self._of_each_form(np.inf, _slowest, nothing=-np.inf)

    def least_total_of_each_form(self, slowest: float) -> list[Chain]:
        """The same with the least sum, of stages not slower than this."""
        return self._of_each_form(slowest * (1 + ROUNDING), _total)

    # --- the programs -------------------------------------------------------------------------------------------------

    def _best(self, slowest: float, combine: Combine) -> Chain | None:
        values = self._run(slowest, combine)
        least, state = self._ends(values)
        if state is None or least == np.inf:
            return None
        incoming = self._incoming()
        first = self._first(0, incoming[state], slowest, combine, values)
        return self._followed(first, incoming, slowest, combine, values)

    def _of_each_form(self, slowest: float, combine: Combine, nothing: float = 0.0) -> list[Chain]:
        values = self._run(slowest, combine, nothing)
        incoming = self._incoming()
        forms: dict[tuple[int, int], list[Move]] = {}
        for state, arriving in incoming.items():
            if values[state][0] < np.inf and self.num_stages in (None, state.num_stages):
                for move in arriving:
                    forms.setdefault((state.num_stages, len(move.devices)), []).append(move)
        chains: list[Chain] = []
        for arriving in forms.values():
            first = self._first(0, arriving, slowest, combine, values)
            if first is not None:
                chains.append(self._followed(first, incoming, slowest, combine, values))
        return chains

    def _incoming(self) -> dict[PlacementState, list[Move]]:
        incoming: dict[PlacementState, list[Move]] = {}
        for leaving in self.moves.moves:
            for move in leaving:
                incoming.setdefault(move.before, []).append(move)
        return incoming

    def _followed(
        self,
        link: ChainStage | None,
        incoming: dict[PlacementState, list[Move]],
        slowest: float,
        combine: Combine,
        values: dict[PlacementState, Floats],
    ) -> Chain:
        """The chain that begins with this stage and is the best behind it."""
        links: list[ChainStage] = []
        while link is not None:
            links.append(link)
            state = link.move.after
            link = (
                None
                if state == self.moves.start
                else self._first(link.after, incoming[state], slowest, combine, values)
            )
        return Chain(tuple(links))

    def _run(self, slowest: float, combine: Combine, nothing: float = 0.0) -> dict[PlacementState, Floats]:
        """The value of the best rest of a chain behind each set, in each state; `nothing` is that of an empty rest."""
        num = self.candidates.num_sets
        values: dict[PlacementState, Floats] = {state: np.full(num, np.inf) for state in self.moves.states}
        values[self.moves.start][-1] = nothing
        for state, leaving in zip(self.moves.states, self.moves.moves, strict=True):
            rest = values[state]
            for move in leaving:
                allowed = self._allow(move, slowest)
                if not len(allowed.rows):
                    continue
                found = np.minimum.reduceat(combine(allowed, move, rest[allowed.after]), allowed.starts)
                target = values[move.before]
                target[allowed.rows] = np.minimum(target[allowed.rows], found)
        return values

    def _ends(self, values: dict[PlacementState, Floats]) -> tuple[float, PlacementState | None]:
        """The best value of a whole chain, and the state it ends in: of equal ones that with fewest devices used."""
        best, at = np.inf, None
        for state, value in values.items():
            if state == self.moves.start or self.num_stages not in (None, state.num_stages):
                continue
            if at is None or value[0] < best:
                best, at = float(value[0]), state
        return best, at

    def _first(
        self, number: int, incoming: list[Move], slowest: float, combine: Combine, values: dict[PlacementState, Floats]
    ) -> ChainStage | None:
        """The stage that a best chain has behind this set: of equally good ones the smallest."""
        options: list[tuple[float, int, int, Move, _Allowed]] = []
        for move in incoming:
            allowed = self._allow(move, slowest)
            row = int(np.searchsorted(allowed.rows, number))
            if row == len(allowed.rows) or allowed.rows[row] != number:
                continue
            first = int(allowed.starts[row])
            last = int(allowed.starts[row + 1]) if row + 1 < len(allowed.starts) else len(allowed.after)
            found = combine(allowed, move, values[move.after][allowed.after])[first:last]
            least = float(found.min())
            if least < np.inf:
                at = first + int(np.argmax(found <= least + abs(least) * ROUNDING))
                options.append((least, int(allowed.after[at]), at, move, allowed))
        if not options:
            return None
        least = min(option[0] for option in options)
        near = [option for option in options if option[0] <= least + abs(least) * ROUNDING]
        _, after, at, move, allowed = min(
            near, key=lambda option: (option[1], len(option[3].devices), option[3].kind, -option[3].devices[0])
        )
        recompute = bool(self.costs.of(move).recompute[allowed.pairs[at]])
        return ChainStage(number, after, move, recompute, float(allowed.slowest[at]), float(allowed.total[at]))

    def _allow(self, move: Move, slowest: float) -> _Allowed:
        costs = self.costs.of(move)
        if slowest != self._bound:
            self._allowed.clear()
            self._bound = slowest
        if id(costs) not in self._allowed:
            keep = np.isfinite(costs.slowest) if slowest == np.inf else costs.slowest <= slowest
            pairs = np.nonzero(keep)[0]
            before = self.candidates.before[pairs]
            starts = np.nonzero(np.diff(before, prepend=-1))[0]
            after = self.candidates.after[pairs]
            self._allowed[id(costs)] = (
                costs,
                _Allowed(pairs, after, before[starts], starts, costs.slowest[pairs], costs.total[pairs]),
            )
        return self._allowed[id(costs)][1]


def _slowest(allowed: _Allowed, move: Move, rest: Floats) -> Floats:
    return np.maximum(allowed.slowest, rest)


def _total(allowed: _Allowed, move: Move, rest: Floats) -> Floats:
    return allowed.total + rest


def least_sum(chains: ChainSearch, slowest: float, scale: float) -> Chain | None:
    """The chain of least sum + maximum; no chain has a smaller maximum than `slowest`."""
    best: Chain | None = None
    best_s = math.inf

    def attempt(limit: float) -> tuple[float, float]:
        """The least sum under a limit, and the maximum it has."""
        nonlocal best, best_s
        chain = chains.least_total(limit, scale)
        if chain is None:
            return math.inf, 0.0
        if chain.total + chain.slowest < best_s * (1 - ROUNDING):
            best, best_s = chain, chain.total + chain.slowest
        return chain.total, chain.slowest

    for more in (1.0, 1.03, 1.1, 1.3):  # good plans first, so that few limits are left to try
        attempt(slowest * more * (1 + ROUNDING))
    limit, reached = math.inf, math.inf
    while limit >= slowest and reached > slowest:
        sum_s, reached = attempt(limit)
        limit = min(reached * (1 - ROUNDING), best_s - sum_s)
    return best
