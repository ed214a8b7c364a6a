"""`exact`: the best stages by training.md's objective, over all cuts, replications and recomputations; the default.

Cuts are down-closed sets I ⊂ J ⊂ ... of the graph, and the devices are dealt from the last
stage backwards, so that a stage knows how many workers come after it and with that how many
micro-batches and versions it holds. With d what is left of the devices:

    without a flush   A[I, d] = min over J ⊃ I, kind, r of  max(cost(J - I, r) / r, link, A[J, d + r])
    with a flush      the least of  sum + T  over T: for each T the same program with sums, of stages whose further
                      rounds take at most T, from the largest T to the least; a plan that beats the best so far has
                      T < best - sum, since sums only grow as T falls

A stage recomputes only if it does not fit otherwise: that never makes it quicker. Of equally
good plans the one of fewest stages wins, then of fewest devices, then of earliest cuts.

Where the graph has too many sets, `contraction` chooses a family of them, and the search
goes on around the cuts it finds, until they stay (training.md, section 5). The program over
all sets is that of Tarnawski et al. (2020); enumerating the maximum is Alpa's (2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import NoPlanFits
from ropewalk.pipeline.cost import OperatorCosts, fastest_speed, objective_s
from ropewalk.pipeline.down_sets import BitGraph, down_sets, members
from ropewalk.pipeline.partitioners.blocks import Parts, down_closed_parts
from ropewalk.pipeline.partitioners.candidates import Candidates, candidates, crossing_bytes
from ropewalk.pipeline.partitioners.chains import ROUNDING, Chain, ChainSearch, least_sum
from ropewalk.pipeline.partitioners.contraction import NearCuts, coarse_sets, in_order, sets_near
from ropewalk.pipeline.partitioners.cost_model import CostModel
from ropewalk.pipeline.partitioners.partitioner import Partition, Request
from ropewalk.pipeline.partitioners.placement import Move, moves, only
from ropewalk.pipeline.partitioners.relaxation import Relaxation
from ropewalk.pipeline.partitioners.relaxed_candidates import relaxed_candidates
from ropewalk.pipeline.partitioners.stage_costs import CostOfMoves, ModelCosts, ObjectiveCosts, columns
from ropewalk.pipeline.plans import Stage

#: Classes of cuts that the lower bound tells apart.
_CELLS = 256
#: Down-closed parts of a block that are all looked at, if there are not more.
_MAX_PARTS = 200_000


@dataclass(frozen=True)
class Found:
    """The best plan over a family of sets."""

    cuts: tuple[int, ...]
    #: The moves of its stages, from the first.
    along: tuple[Move, ...]
    stages: tuple[Stage, ...]
    objective_s: float


class Exact:
    """The best plan by training.md's objective, or by another cost model's slowest stage.

    Args:
        cost_model: what to minimise the maximum of, in place of training.md's objective; for one level of devices.
        max_sets: how many down-closed sets are searched at once; graphs with more are searched piece by piece.
    """

    name = "exact"

    def __init__(self, *, cost_model: CostModel | None = None, max_sets: int = 500) -> None:
        self.cost_model = cost_model
        self.max_sets = max_sets

    def partition(self, request: Request) -> Partition:
        """Choose the stages.

        Raises:
            NoPlanFits: no plan does what was asked.
        """
        graph = BitGraph.of(request.profile)
        sets = down_sets(graph, self.max_sets)
        parts: list[Parts] = []
        if sets is not None:
            found = search(request, graph, sets, self.cost_model)
        else:
            parts = down_closed_parts(graph, _MAX_PARTS)
            found = self._piece_by_piece(request, graph, parts)
        if found is None:
            raise NoPlanFits("")
        bound_s = found.objective_s if sets is not None else lower_bound_s(request, graph, parts)
        return Partition(found.stages, found.objective_s, bound_s)

    def _piece_by_piece(self, request: Request, graph: BitGraph, parts: Sequence[Parts]) -> Found | None:
        costs = OperatorCosts(request.profile, request.schedule.splits_backward)
        work_s = np.array([operator.forward_s for operator in costs.operators]) + np.array(costs.backward_s)
        values = np.array([operator.output_bytes for operator in costs.operators], dtype=np.float64)
        cuts = NearCuts(graph, parts, work_s, values)
        coarse = coarse_sets(graph, work_s.tolist(), self.max_sets // 4)
        coarse = in_order([*coarse, *cuts.everywhere(self.max_sets // 2)])
        best = search(request, graph, coarse, self.cost_model)
        if best is None or not best.cuts:
            return best

        def near(found: Found, num: int) -> list[int]:
            each = num // len(found.cuts)
            them = [(*cuts.near(cut, each // 2), *sets_near(graph, cut, each // 2)) for cut in found.cuts]
            return in_order([0, graph.everything, *(down_set for sets in them for down_set in sets)])

        while True:
            last = best
            while True:  # the same stages on the same devices, cut elsewhere
                found = search(request, graph, near(best, self.max_sets), self.cost_model, best.along)
                if found is None or found.objective_s >= best.objective_s * (1 - ROUNDING):
                    break
                best = found
            sets = in_order([*coarse, *near(best, self.max_sets // 2)])
            found = search(request, graph, sets, self.cost_model)
            if found is not None and found.objective_s < best.objective_s * (1 - ROUNDING):
                best = found
            if best is last:
                return best


def search(
    request: Request,
    graph: BitGraph,
    sets: Sequence[int],
    cost_model: CostModel | None = None,
    along: Sequence[Move] = (),
) -> Found | None:
    """The best plan whose cuts are all among these sets, and whose stages make these moves; None if none fits."""
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    them = candidates(costs, graph, sets)
    crossing = crossing_bytes(costs, graph, sets) if cost_model else None
    best: Found | None = None
    for widths, num_stages in shapes(request):
        of_moves: CostOfMoves
        if cost_model is not None and crossing is not None:
            of_moves = ModelCosts(request, them, num_stages or 1, cost_model, columns(them, crossing))
        else:
            of_moves = ObjectiveCosts(request, them, num_stages or 1)
        chains = ChainSearch(
            them, moves(request.topology, widths, num_stages) if not along else only(along), of_moves, num_stages
        )
        slowest = chains.least_slowest()
        if slowest == math.inf:
            continue
        if request.schedule.flushes and cost_model is None:
            chain = least_sum(chains, slowest, request.profile.compute_s)
        else:
            chain = chains.fewest(slowest)
        assert chain is not None
        found = _found(request, them, chain, cost_model is not None)
        if best is None or found.objective_s < best.objective_s * (1 - ROUNDING):
            best = found
    return best


def lower_bound_s(request: Request, graph: BitGraph, parts: Sequence[Parts]) -> float:
    """No plan has a smaller objective than this."""
    relaxation = Relaxation(request, graph)
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    cells = relaxed_candidates(costs, graph, parts, request.recompute is True, _CELLS)
    bounds: list[float] = []
    for widths, num_stages in shapes(request):
        there = moves(request.topology, widths, num_stages)
        slowest = relaxation.least_slowest(there, num_stages)
        of_moves = ObjectiveCosts(request, cells, num_stages or 1, slowest, sums_work=False)
        chains = ChainSearch(cells, there, of_moves, num_stages)
        slowest = chains.least_slowest()
        if request.schedule.flushes:
            chain = least_sum(chains, slowest, request.profile.compute_s)
            if chain is not None:
                work_s = relaxation.total_s / fastest_speed(request)
                bounds.append(work_s + chain.total + chain.slowest)
        else:
            bounds.append(request.micro_batches * slowest)
    return min(bounds, default=0.0)


def shapes(request: Request) -> list[tuple[tuple[int, ...], int | None]]:
    """What to search one after the other: allowed numbers of replicas, and of stages if that must be known."""
    widths = tuple(range(1, request.topology.num_devices + 1))
    per_width = [(width,) for width in widths] if request.schedule.uniform_replicas else [widths]
    if request.num_stages is not None or not _memory_depends_on_stages(request):
        return [(width, request.num_stages) for width in per_width]
    return [
        (width, num_stages)
        for width in per_width
        for num_stages in range(1, request.topology.num_devices // width[0] + 1)
    ]


def _memory_depends_on_stages(request: Request) -> bool:
    if not any(request.memory_limit(kind) < math.inf for kind in range(len(request.topology.kinds))):
        return False
    num, batches = request.topology.num_devices, request.micro_batches

    def kept(after: int, num_stages: int) -> tuple[int, int]:
        held = request.schedule.held(after, 1, batches, num_stages)
        return held, request.schedule.extra_versions(after, 1, num_stages)

    return any(kept(after, after + 1) != kept(after, num) for after in range(num))


def _found(request: Request, them: Candidates, chain: Chain, by_model: bool) -> Found:
    order = request.profile.order
    stages = tuple(
        Stage(
            number,
            tuple(order[index] for index in members(them.sets[link.after] & ~them.sets[link.before])),
            link.move.devices,
            link.recompute,
        )
        for number, link in enumerate(chain.links)
    )
    cuts = tuple(them.sets[link.after] for link in chain.links[:-1])
    return Found(
        cuts,
        tuple(link.move for link in chain.links),
        stages,
        chain.slowest if by_model else objective_s(request, stages),
    )
