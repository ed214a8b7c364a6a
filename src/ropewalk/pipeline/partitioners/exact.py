"""`exact`: the best stages over all cuts, replications and recomputations; the default partitioner.

The objective, and why the search is right: docs/theory.md, "Objective of the planner" and "Search and lower bound".

Cuts are down-closed sets I ⊂ J ⊂ ... of the graph. Devices are assigned from the last stage
backwards, so that the number of workers after a stage is known, and with it the micro-batches
and versions that the stage holds. With d the number of devices that are left, and rate the
seconds per micro-batch of computing and summing gradients (`cost`):

    without a flush   A[I, d] = min over J ⊃ I, kind, r of  max(rate(J - I, r), link, A[J, d + r])
    with a flush      the least of  sum + T  over T: for each T the same program with sums, over stages whose further
                      rounds take at most T, from the largest T to the least; a plan that beats the best so far has
                      T < best - sum, since sums only grow as T falls

A stage recomputes only if it does not fit otherwise, since recomputing never makes it faster.
Ties are broken by fewest stages, then fewest devices, then earliest cuts.

A schedule that refuses some plans is asked before the search if replicas are equal, and
otherwise about the best plan. If it refuses that plan, the search is restricted to equal
replicas of all stages (see `shapes`), or of the stages that share parameters: schedules
require no more than that.

If the graph has too many sets, `contraction` chooses a family of them, and the search is
repeated around the cuts that it finds, until they no longer change. The program over all
sets is that of Tarnawski et al. (2020); enumerating the maximum is Alpa's (2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ropewalk.errors import NoPlanFits, ProfileInvalid, ScheduleInvalid
from ropewalk.pipeline.cost import fastest_speed
from ropewalk.pipeline.down_sets import BitGraph, down_sets
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.cost_model import CostModel
from ropewalk.pipeline.partitioners.exact_search.blocks import BlockDownSets, Floats, down_closed_parts
from ropewalk.pipeline.partitioners.exact_search.chains import ROUNDING, ChainSearch, least_sum
from ropewalk.pipeline.partitioners.exact_search.contraction import NearCuts, coarse_sets, in_order, sets_near
from ropewalk.pipeline.partitioners.exact_search.family_search import Found, search
from ropewalk.pipeline.partitioners.exact_search.grouped import simple_bound_s
from ropewalk.pipeline.partitioners.exact_search.ranking import best_of_each_form
from ropewalk.pipeline.partitioners.exact_search.refusal import refusal
from ropewalk.pipeline.partitioners.exact_search.relaxation import Relaxation
from ropewalk.pipeline.partitioners.exact_search.relaxed_candidates import relaxed_candidates
from ropewalk.pipeline.partitioners.exact_search.shapes import shapes, tries_all_widths, widths_of
from ropewalk.pipeline.partitioners.exact_search.simple_plans import objection_to, simple_plans
from ropewalk.pipeline.partitioners.exact_search.stage_costs import ObjectiveCosts
from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest

_CELLS = 256
"""Classes of cuts that the lower bound distinguishes."""
_BUDGET = 160_000_000
"""Most moves times pairs of sets that one search examines, and the least number of sets."""
_LEAST_SETS = 60
_FORMS = 6
"""Number of plans of different forms around whose cuts the search goes on."""
_RANKED_SETS = 120
"""Number of sets that are searched for plans of different forms."""
_OPERATORS_IN_ROUNDS = 6000
"""Most rounds of the search around a plan's cuts, times operators of the graph, and the least number of rounds. Each
round gains less than the one before; with 2,000 operators and no limit they took minutes for a gap of 0.5 %."""
_LEAST_ROUNDS = 2
_MAX_PARTS = 200_000
"""Most down-closed parts of a block that are examined exhaustively."""


class Exact:
    """Finds the best plan by the planner's objective (`cost.objective_s`), or by another cost model's slowest stage.

    Args:
        cost_model: the model whose maximum over stages is minimised, in place of the planner's objective; for one
            level of devices.
        max_sets: most down-closed sets that are searched at once; graphs with more are searched piece by piece.
    """

    name = "exact"

    def __init__(self, *, cost_model: CostModel | None = None, max_sets: int = 500) -> None:
        self.cost_model = cost_model
        self.max_sets = max_sets

    def partition(self, request: PlanRequest) -> Partition:
        """Choose the stages.

        Raises:
            NoPlanFits: no plan meets the request.
            ProfileInvalid: all operators are inputs.
        """
        if self.cost_model is not None:
            return self._searched(request)
        simple = simple_plans(request)
        try:
            best = self._searched(request)
        except NoPlanFits:  # a coarse family of cuts may have no plan that fits
            if not simple:
                raise
            return replace(simple[0], lower_bound_s=min(simple[0].objective_s, simple_bound_s(request)))
        if simple and simple[0].objective_s < best.objective_s * (1 - ROUNDING):
            best = replace(best, stages=simple[0].stages, objective_s=simple[0].objective_s)
        return best

    def _searched(self, request: PlanRequest) -> Partition:
        graph = BitGraph.of(request.profile)
        max_sets = self._affordable(request)
        sets = down_sets(graph, max_sets)
        if sets is not None:
            return plan_within(request, graph, sets, self.cost_model)
        if max_sets < self.max_sets:
            return Exact(cost_model=self.cost_model, max_sets=max_sets)._searched(request)
        parts = down_closed_parts(graph, _MAX_PARTS)
        found = self._piece_by_piece(request, graph, parts, equal=False)
        if found is None:
            raise refusal(request, graph, self._coarse(request, graph, parts))
        if self.cost_model is not None:
            return Partition(found.stages, found.objective_s)
        if (objection := objection_to(request, found.stages)) is not None:
            equal = self._piece_by_piece(request, graph, parts, equal=True)
            whole = self._piece_by_piece(request, graph, parts, equal=False, tie_replicas=0) if _ties(request) else None
            found = _best_taken(request, (equal, whole), objection)
        bound_s = min(_bound_s(request, graph, parts), found.objective_s)
        note = (
            f"the graph has more than {self.max_sets} legal cuts, so not all were tried; lower_bound_s says how close"
        )
        return Partition(found.stages, found.objective_s, bound_s, (note,))

    def candidates(self, request: PlanRequest, num: int = 24) -> tuple[Partition, ...]:
        """Return good plans of different forms for a simulator to choose from; `partition(request)` comes first.

        Then follow, by objective, the simple plans (see `simple_plans`), the best plans for each number of stages and
        of replicas of the first stage, and plans near them, as far as a family of cuts has them.

        Args:
            request: the model, the devices, the schedule and the limits.
            num: most plans to return.

        Raises:
            NoPlanFits: no plan meets the request.
            ProfileInvalid: all operators are inputs.
        """
        best = self.partition(request)
        if self.cost_model is not None:
            return (best,)
        simple = [of for of in simple_plans(request) if of.stages != best.stages]
        known = {of.stages for of in (best, *simple)}
        found = [] if request.schedule.stages_per_worker > 1 else self._of_each_form(request, best, num)
        others = [of for of in found if of.stages not in known and objection_to(request, of.stages) is None]
        plans = [(of.stages, of.objective_s) for of in (*simple, *others[: max(0, num - 1 - len(simple))])]
        plans.sort(key=lambda plan: plan[1])
        return (best, *(replace(best, stages=stages, objective_s=objective_s) for stages, objective_s in plans))

    def _of_each_form(self, request: PlanRequest, best: Partition, num: int) -> list[Found]:
        """Plans over a family of cuts that includes those of the best plan."""
        graph = BitGraph.of(request.profile)
        sets = down_sets(graph, _RANKED_SETS)
        if sets is None:
            work_s = [operator.forward_s + operator.backward_s for operator in OperatorCosts(request.profile).operators]
            cuts = [0]
            for stage in best.stages:
                cuts.append(cuts[-1] | graph.bits_of(request.profile, stage.operators))
            sets = in_order([*cuts, *coarse_sets(graph, work_s, _RANKED_SETS)])
        equal = len({stage.replicas for stage in best.stages}) == 1 and best.lower_bound_s != best.objective_s
        return best_of_each_form(request, graph, sets, equal=equal, num=num)

    def _affordable(self, request: PlanRequest) -> int:
        """The number of sets that can be searched at once; it falls with the number of devices."""
        num_moves = sum(len(leaving) for shape in shapes(request) for leaving in shape.moves.moves)
        return max(min(self.max_sets, _LEAST_SETS), min(self.max_sets, math.isqrt(2 * _BUDGET // max(1, num_moves))))

    def _coarse(self, request: PlanRequest, graph: BitGraph, parts: Sequence[BlockDownSets]) -> list[int]:
        work_s, values = _work_and_values(request)
        contracted = coarse_sets(graph, work_s.tolist(), self.max_sets // 4)
        return in_order([*contracted, *NearCuts(graph, parts, work_s, values).everywhere(self.max_sets // 2)])

    def _piece_by_piece(
        self,
        request: PlanRequest,
        graph: BitGraph,
        parts: Sequence[BlockDownSets],
        equal: bool,
        tie_replicas: int | None = None,
    ) -> Found | None:
        """The best plan over a coarse family of cuts, and then near its cuts, until they no longer change."""
        cuts = NearCuts(graph, parts, *_work_and_values(request))
        coarse = self._coarse(request, graph, parts)
        best = search(request, graph, coarse, self.cost_model, equal=equal, tie_replicas=tie_replicas)
        rounds = range(max(_LEAST_ROUNDS, _OPERATORS_IN_ROUNDS // len(graph.sources)))

        def near(found: Found, num: int) -> list[int]:
            each = num // len(found.cuts)
            them = [(*cuts.near(cut, each // 2), *sets_near(graph, cut, each // 2)) for cut in found.cuts]
            return in_order([0, graph.everything, *(down_set for sets in them for down_set in sets)])

        def better(found: Found | None, than: Found) -> bool:
            return found is not None and found.objective_s < than.objective_s * (1 - ROUNDING)

        def recut(found: Found) -> Found:
            """The same stages on the same devices, with the best cuts near the present ones."""
            for _ in rounds:
                if not found.cuts:
                    break
                sets = near(found, self.max_sets)
                other = search(request, graph, sets, self.cost_model, found.along, tie_replicas=tie_replicas)
                if other is None or not better(other, found):
                    break
                found = other  # may lack the first stages
            return found

        if best is None:
            return None
        if self.cost_model is None and request.schedule.stages_per_worker == 1 and tie_replicas is None:
            fewer = in_order([*coarse[:: len(coarse) // _RANKED_SETS or 1], graph.everything])
            for form in best_of_each_form(request, graph, fewer, equal=equal, num=_FORMS):
                other = recut(form)
                best = other if better(other, best) else best
        for _ in rounds:
            last = best
            best = recut(best)
            if not best.cuts:
                break
            sets = in_order([*coarse, *near(best, self.max_sets // 2)])
            found = search(request, graph, sets, self.cost_model, equal=equal, tie_replicas=tie_replicas)
            if found is not None and better(found, best):
                best = found
            if best is last:
                break
        return best


def _work_and_values(request: PlanRequest) -> tuple[Floats, Floats]:
    """The seconds of each operator, and the bytes of its value."""
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    forward_s = np.array([operator.forward_s for operator in costs.operators])
    values = np.array([operator.output_bytes for operator in costs.operators], dtype=np.float64)
    return forward_s + np.array(costs.backward_s), values


def plan_within(
    request: PlanRequest, graph: BitGraph, sets: Sequence[int], cost_model: CostModel | None = None
) -> Partition:
    """Return the best plan whose cuts are all among the given sets.

    Args:
        request: the model, the devices, the schedule and the limits.
        graph: the graph of the request's profile.
        sets: down-closed sets, ordered as by `down_sets`.
        cost_model: the model whose maximum over stages is minimised; None: the planner's objective.

    Raises:
        NoPlanFits: no such plan meets the request.
        ProfileInvalid: all operators are inputs.
    """
    if all(operator.is_input for operator in request.profile.operators):
        raise ProfileInvalid(
            f"none of the {len(request.profile.operators)} operators is more than an input; there is nothing to cut"
        )
    found = search(request, graph, sets, cost_model)
    if found is None:
        raise refusal(request, graph, sets)
    if request.schedule.stages_per_worker > 1:
        bound_s = min(found.objective_s, simple_bound_s(request))
        note = (
            "stages that share a device are balanced one by one; lower_bound_s says how far from the best this may be"
        )
        return Partition(found.stages, found.objective_s, bound_s, (note,))
    bound_s: float | None = found.objective_s
    notes: tuple[str, ...] = ()
    if not tries_all_widths(request):
        bound_s = min(bound_s, simple_bound_s(request)) if cost_model is None else None
        notes = (
            "with this number of devices, not every number of replicas was tried; lower_bound_s says how far from the "
            "best the plan may be",
        )
    objection = objection_to(request, found.stages)
    if objection is None or cost_model is not None:
        return Partition(found.stages, found.objective_s, bound_s, notes)
    tie_replicas = widths_of(request) if _ties(request) else ()
    taken = _best_taken(
        request,
        (
            search(request, graph, sets, equal=True),
            *(search(request, graph, sets, tie_replicas=replicas) for replicas in tie_replicas),
        ),
        objection,
    )
    note = f"without the schedule's demand there would be a plan of {found.objective_s:.6g} s"
    return Partition(taken.stages, taken.objective_s, bound_s, (*notes, note))


def _ties(request: PlanRequest) -> bool:
    """Whether stages may share parameters, which needs a search of its own."""
    return bool(request.profile.tied) and not request.schedule.uniform_replicas


def _best_taken(request: PlanRequest, found: Iterable[Found | None], objection: ScheduleInvalid) -> Found:
    """The best of these plans that the schedule accepts.

    Raises:
        NoPlanFits: the schedule accepts none of them.
    """
    taken = [of for of in found if of is not None and objection_to(request, of.stages) is None]
    if not taken:
        raise NoPlanFits(
            f"the schedule refuses the best plan, and there is none that it takes with equally many replicas of all "
            f"stages, or of those that share parameters: {objection}"
        ) from objection
    return min(taken, key=lambda of: of.objective_s)


def _bound_s(request: PlanRequest, graph: BitGraph, parts: Sequence[BlockDownSets]) -> float:
    """A lower bound of the objective over all plans, in seconds."""
    if request.schedule.stages_per_worker > 1 or not tries_all_widths(request):
        return simple_bound_s(request)
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
