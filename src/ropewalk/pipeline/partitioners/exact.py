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

Schedules that refuse some plans are asked beforehand where replicas are equal, and else of
the best plan; if they refuse that, the best of equal replicas is taken (see `shapes`).

Where the graph has too many sets, `contraction` chooses a family of them, and the search
goes on around the cuts it finds, until they stay (training.md, section 5). The program over
all sets is that of Tarnawski et al. (2020); enumerating the maximum is Alpa's (2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import NoPlanFits, ProfileInvalid, ScheduleInvalid
from ropewalk.pipeline.cost import OperatorCosts, fastest_speed, objective_s
from ropewalk.pipeline.down_sets import BitGraph, down_sets, members
from ropewalk.pipeline.partitioners.blocks import Parts, down_closed_parts
from ropewalk.pipeline.partitioners.candidates import Candidates, candidates, crossing_bytes
from ropewalk.pipeline.partitioners.chains import ROUNDING, Chain, ChainSearch, least_sum
from ropewalk.pipeline.partitioners.contraction import NearCuts, coarse_sets, in_order, sets_near
from ropewalk.pipeline.partitioners.cost_model import CostModel
from ropewalk.pipeline.partitioners.grouped import grouped_bound_s
from ropewalk.pipeline.partitioners.partitioner import Partition, Request
from ropewalk.pipeline.partitioners.placement import Move, only
from ropewalk.pipeline.partitioners.refusal import refusal
from ropewalk.pipeline.partitioners.relaxation import Relaxation
from ropewalk.pipeline.partitioners.relaxed_candidates import relaxed_candidates
from ropewalk.pipeline.partitioners.shapes import Shape, shapes
from ropewalk.pipeline.partitioners.stage_costs import CostOfMoves, ModelCosts, ObjectiveCosts, columns
from ropewalk.pipeline.plans import Stage, assemble

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
            ProfileInvalid: there is nothing but inputs.
        """
        graph = BitGraph.of(request.profile)
        sets = down_sets(graph, self.max_sets)
        if sets is not None:
            return plan_within(request, graph, sets, self.cost_model)
        parts = down_closed_parts(graph, _MAX_PARTS)
        coarse, found = self._piece_by_piece(request, graph, parts)
        if found is None:
            raise refusal(request, graph, coarse)
        if self.cost_model is not None:
            return Partition(found.stages, found.objective_s)
        bound_s = min(_bound_s(request, graph, parts), found.objective_s)
        note = (
            f"the graph has more than {self.max_sets} legal cuts, so not all were tried; lower_bound_s says how close"
        )
        return Partition(found.stages, found.objective_s, bound_s, (note,))

    def _piece_by_piece(
        self, request: Request, graph: BitGraph, parts: Sequence[Parts]
    ) -> tuple[list[int], Found | None]:
        """The best plan over a coarse family, and then near its cuts, until they stay; with that family."""
        costs = OperatorCosts(request.profile, request.schedule.splits_backward)
        work_s = np.array([operator.forward_s for operator in costs.operators]) + np.array(costs.backward_s)
        values = np.array([operator.output_bytes for operator in costs.operators], dtype=np.float64)
        cuts = NearCuts(graph, parts, work_s, values)
        coarse = coarse_sets(graph, work_s.tolist(), self.max_sets // 4)
        coarse = in_order([*coarse, *cuts.everywhere(self.max_sets // 2)])
        best = search(request, graph, coarse, self.cost_model)

        def near(found: Found, num: int) -> list[int]:
            each = num // len(found.cuts)
            them = [(*cuts.near(cut, each // 2), *sets_near(graph, cut, each // 2)) for cut in found.cuts]
            return in_order([0, graph.everything, *(down_set for sets in them for down_set in sets)])

        def better(found: Found | None, than: Found) -> bool:
            return found is not None and found.objective_s < than.objective_s * (1 - ROUNDING)

        while best is not None and best.cuts:
            last = best
            while True:  # the same stages on the same devices, cut elsewhere
                found = search(request, graph, near(best, self.max_sets), self.cost_model, best.along)
                if found is None or not better(found, best):
                    break
                best = found
            found = search(request, graph, in_order([*coarse, *near(best, self.max_sets // 2)]), self.cost_model)
            if found is not None and better(found, best):
                best = found
            if best is last:
                break
        return coarse, best


def plan_within(
    request: Request, graph: BitGraph, sets: Sequence[int], cost_model: CostModel | None = None
) -> Partition:
    """The best plan whose cuts are all among these sets, which are ordered as `down_sets` does.

    Raises:
        NoPlanFits: none does what was asked.
        ProfileInvalid: there is nothing but inputs.
    """
    if all(operator.is_input for operator in request.profile.operators):
        raise ProfileInvalid(
            f"none of the {len(request.profile.operators)} operators is more than an input; there is nothing to cut"
        )
    found = search(request, graph, sets, cost_model)
    if found is None:
        raise refusal(request, graph, sets)
    if request.schedule.stages_per_worker > 1:
        bound_s = min(found.objective_s, grouped_bound_s(request))
        note = (
            "stages that share a device are balanced one by one; lower_bound_s says how far from the best this may be"
        )
        return Partition(found.stages, found.objective_s, bound_s, (note,))
    objection = _objection(request, found)
    if objection is None or cost_model is not None:
        return Partition(found.stages, found.objective_s, found.objective_s)
    equal = search(request, graph, sets, equal=True)
    objection = objection if equal is None else _objection(request, equal)
    if equal is None or objection is not None:
        raise NoPlanFits(
            f"the schedule refuses the best plan, and there is none with equally many replicas of all stages that it "
            f"takes: {objection}"
        ) from objection
    note = f"without the schedule's demand there would be a plan of {found.objective_s:.6g} s"
    return Partition(equal.stages, equal.objective_s, found.objective_s, (note,))


def _objection(request: Request, found: Found) -> ScheduleInvalid | None:
    name, batches = request.schedule.name, request.micro_batches
    try:
        request.schedule.check(assemble(request.profile, found.stages, schedule=name, micro_batches=batches))
    except ScheduleInvalid as error:
        return error
    return None


def search(
    request: Request,
    graph: BitGraph,
    sets: Sequence[int],
    cost_model: CostModel | None = None,
    along: Sequence[Move] = (),
    equal: bool = False,
) -> Found | None:
    """The best plan whose cuts are all among these sets; None if none fits.

    Args:
        request: what to plan for.
        graph: of its profile.
        sets: in the order of `down_sets`.
        cost_model: in place of training.md's objective.
        along: the moves of its stages, if they are given.
        equal: only equally many replicas of all stages.
    """
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    them = candidates(costs, graph, sets)
    crossing = crossing_bytes(costs, graph, sets) if cost_model else None
    best: Found | None = None
    for shape in [Shape(only(along), request.num_stages)] if along else shapes(request, equal=equal):
        of_moves: CostOfMoves
        if cost_model is not None and crossing is not None:
            of_moves = ModelCosts(request, them, shape.known_stages, cost_model, columns(them, crossing))
        else:
            each = request.schedule.stages_per_worker
            of_moves = ObjectiveCosts(request, them, shape.known_stages, stages_per_device=each)
        chain = _best_chain(request, ChainSearch(them, shape.moves, of_moves, shape.num_stages), cost_model is not None)
        if chain is not None:
            found = _found(request, them, chain, cost_model is not None)
            if best is None or found.objective_s < best.objective_s * (1 - ROUNDING):
                best = found
    return best


def _best_chain(request: Request, chains: ChainSearch, by_model: bool) -> Chain | None:
    slowest = chains.least_slowest()
    if slowest == math.inf:
        return None
    if request.schedule.flushes and not by_model:
        return least_sum(chains, slowest, request.profile.compute_s)
    return chains.fewest(slowest)


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
    along = tuple(link.move for link in chain.links)
    return Found(cuts, along, stages, chain.slowest if by_model else objective_s(request, stages))


def _bound_s(request: Request, graph: BitGraph, parts: Sequence[Parts]) -> float:
    """No plan has a smaller objective than this."""
    if request.schedule.stages_per_worker > 1:
        return grouped_bound_s(request)
    relaxation = Relaxation(request, graph)
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    cells = relaxed_candidates(costs, graph, parts, request.recompute is True, _CELLS)
    bounds: list[float] = []
    for shape in shapes(request):
        slowest = relaxation.least_slowest(shape.moves, shape.num_stages)
        of_moves = ObjectiveCosts(request, cells, shape.known_stages, least_slowest=slowest, sums_work=False)
        chains = ChainSearch(cells, shape.moves, of_moves, shape.num_stages)
        slowest = chains.least_slowest()
        if slowest == math.inf:
            continue
        if request.schedule.flushes:
            chain = least_sum(chains, slowest, request.profile.compute_s)
            assert chain is not None
            bounds.append(relaxation.total_s / fastest_speed(request) + chain.total + chain.slowest)
        else:
            bounds.append(request.micro_batches * slowest)
    return min(bounds, default=0.0)
