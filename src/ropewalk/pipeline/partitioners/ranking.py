"""Plans of different forms: the best for each number of stages and of replicas of the first.

An objective that can be minimised exactly leaves out what only a clock shows; a simulator
that chooses among such plans makes up for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.pipeline.cost import OperatorCosts
from ropewalk.pipeline.down_sets import BitGraph
from ropewalk.pipeline.partitioners.candidates import candidates
from ropewalk.pipeline.partitioners.chains import Chain, ChainSearch
from ropewalk.pipeline.partitioners.family_search import Found, found_plan
from ropewalk.pipeline.partitioners.partitioner import Request
from ropewalk.pipeline.partitioners.placement import moves
from ropewalk.pipeline.partitioners.shapes import Shape, shapes
from ropewalk.pipeline.partitioners.stage_costs import ObjectiveCosts

#: Stages that are told apart; plans of more are found by `partition()` only.
_MOST_STAGES = 8
#: With a flush: limits on further rounds, as multiples of the least, under which sums are minimised.
_LIMITS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0, float("inf"))


def best_of_each_form(request: Request, graph: BitGraph, sets: Sequence[int], *, equal: bool) -> list[Found]:
    """The best plan of each form whose cuts are all among these sets; with a flush, nearly.

    Args:
        request: what to plan for.
        graph: of its profile.
        sets: in the order of `down_sets`.
        equal: only equally many replicas of all stages.
    """
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    them = candidates(costs, graph, sets)
    best: dict[tuple[int, int], Found] = {}
    for shape in _counted(request, equal):
        of_moves = ObjectiveCosts(request, them, shape.known_stages)
        for chain in _chains(request, ChainSearch(them, shape.moves, of_moves, shape.num_stages)):
            found = found_plan(request, them, chain, by_model=False)
            form = len(found.stages), found.stages[0].replicas
            if form not in best or found.objective_s < best[form].objective_s:
                best[form] = found
    return [best[form] for form in sorted(best)]


def _chains(request: Request, chains: ChainSearch) -> list[Chain]:
    if not request.schedule.flushes:
        return chains.least_slowest_of_each_form()
    slowest = chains.least_slowest()
    return [
        chain
        for limit in (_LIMITS if slowest < float("inf") else ())
        for chain in chains.least_total_of_each_form(slowest * limit if slowest else limit)
    ]


def _counted(request: Request, equal: bool) -> list[Shape]:
    """The shapes, with the number of stages counted where any will do."""
    found: list[Shape] = []
    for shape in shapes(request, equal=equal):
        if shape.num_stages is not None:
            if shape.num_stages <= _MOST_STAGES or request.num_stages is not None:
                found.append(shape)
            continue
        widths = sorted({len(move.devices) for leaving in shape.moves.moves for move in leaving})
        found.append(Shape(moves(request.topology, widths, _MOST_STAGES), None))
    return found
