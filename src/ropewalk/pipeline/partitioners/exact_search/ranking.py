"""Plans of different forms: the best for each number of stages and of replicas of the first, and others near them.

An objective that can be minimised exactly leaves out what only a clock shows; a simulator
that chooses among such plans makes up for it. Others are those of least sum whose maximum
is within some limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.pipeline.down_sets import BitGraph
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.exact_search.candidates import candidates
from ropewalk.pipeline.partitioners.exact_search.chains import Chain, ChainSearch
from ropewalk.pipeline.partitioners.exact_search.family_search import Found, found_plan
from ropewalk.pipeline.partitioners.exact_search.shapes import Shape, moves_of, shapes, tries_all_widths
from ropewalk.pipeline.partitioners.exact_search.stage_costs import ObjectiveCosts
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import Stage

_MOST_STAGES = 8
"""Stages that are told apart; plans of more are found by `partition()` only."""
_LIMITS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0, float("inf"))
"""Limits on the maximum, as multiples of the least, under which sums are minimised."""


def best_of_each_form(
    request: PlanRequest, graph: BitGraph, sets: Sequence[int], *, equal: bool, num: int
) -> list[Found]:
    """Plans whose cuts are all among these sets, by objective: the best of each form, and as many others.

    Args:
        request: what to plan for.
        graph: of its profile.
        sets: in the order of `down_sets`.
        equal: only equally many replicas of all stages.
        num: the largest number of plans.
    """
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    them = candidates(costs, graph, sets)
    best: dict[tuple[int, int], Found] = {}
    others: dict[tuple[Stage, ...], Found] = {}
    for shape in _counted(request, equal):
        of_moves = ObjectiveCosts(request, them, shape.known_stages)
        for chain in _chains(request, ChainSearch(them, shape.moves, of_moves, shape.num_stages)):
            found = found_plan(request, them, chain, by_model=False)
            form = len(found.stages), found.stages[0].replicas
            others[found.stages] = found
            if form not in best or found.objective_s < best[form].objective_s:
                best[form] = found
    forms = sorted(best.values(), key=_by_objective)[: num // 2]
    rest = [other for other in sorted(others.values(), key=_by_objective) if other not in forms]
    return sorted([*forms, *rest[: num - len(forms)]], key=_by_objective)


def _by_objective(found: Found) -> tuple[float, int]:
    return found.objective_s, len(found.stages)


def _chains(request: PlanRequest, chains: ChainSearch) -> list[Chain]:
    slowest = chains.least_slowest()
    if slowest == float("inf"):
        return []
    found = [] if request.schedule.flushes else chains.least_slowest_of_each_form()
    for limit in _LIMITS:
        found += chains.least_total_of_each_form(slowest * limit if slowest else limit)
    return found


def _counted(request: PlanRequest, equal: bool) -> list[Shape]:
    """The shapes, with the number of stages counted where any will do."""
    found: list[Shape] = []
    for shape in shapes(request, equal=equal):
        if shape.num_stages is not None:
            if shape.num_stages <= _MOST_STAGES or request.num_stages is not None:
                found.append(shape)
            continue
        widths = sorted({len(move.devices) for leaving in shape.moves.moves for move in leaving})
        most = _MOST_STAGES if tries_all_widths(request) else _MOST_STAGES // 2
        found.append(Shape(moves_of(request, widths, most), None))
    return found
