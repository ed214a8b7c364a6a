"""The best plan whose cuts are all in a family of down-closed sets: `exact`'s recurrence, shape by shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.pipeline.cost import objective_s
from ropewalk.pipeline.down_sets import BitGraph, members
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.cost_model import CostModel
from ropewalk.pipeline.partitioners.exact_search.candidates import Candidates, candidates, crossing_bytes
from ropewalk.pipeline.partitioners.exact_search.chains import ROUNDING, Chain, ChainSearch, least_sum
from ropewalk.pipeline.partitioners.exact_search.placement import Move, only
from ropewalk.pipeline.partitioners.exact_search.shapes import Shape, shapes
from ropewalk.pipeline.partitioners.exact_search.stage_costs import CostOfMoves, ModelCosts, ObjectiveCosts, columns
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import Stage


@dataclass(frozen=True)
class Found:
    """The best plan over a family of sets."""

    cuts: tuple[int, ...]
    along: tuple[Move, ...]
    """The moves of its stages, from the first."""
    stages: tuple[Stage, ...]
    objective_s: float


def search(
    request: PlanRequest,
    graph: BitGraph,
    sets: Sequence[int],
    cost_model: CostModel | None = None,
    along: Sequence[Move] = (),
    equal: bool = False,
    tie_replicas: int | None = None,
) -> Found | None:
    """The best plan whose cuts are all among these sets; None if none fits.

    Args:
        request: what to plan for.
        graph: of its profile.
        sets: in the order of `down_sets`.
        cost_model: in place of the planner's objective.
        along: the moves of its stages, if they are given.
        equal: only equally many replicas of all stages.
        tie_replicas: if given, the replicas of stages that share a parameter with others; 0: there are none.
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
            of_moves = ObjectiveCosts(
                request, them, shape.known_stages, tie_replicas=tie_replicas, stages_per_device=each
            )
        chain = _best_chain(request, ChainSearch(them, shape.moves, of_moves, shape.num_stages), cost_model is not None)
        if chain is not None:
            found = found_plan(request, them, chain, cost_model is not None)
            if best is None or found.objective_s < best.objective_s * (1 - ROUNDING):
                best = found
    return best


def _best_chain(request: PlanRequest, chains: ChainSearch, by_model: bool) -> Chain | None:
    slowest = chains.least_slowest()
    if slowest == math.inf:
        return None
    if request.schedule.flushes and not by_model:
        return least_sum(chains, slowest, request.profile.compute_s)
    return chains.fewest(slowest)


def found_plan(request: PlanRequest, them: Candidates, chain: Chain, by_model: bool) -> Found:
    """The plan of a chain."""
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
