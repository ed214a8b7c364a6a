"""What the search believes of a plan is what the plan costs, whichever plan it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.cost import objective_s, plan_cost
from ropewalk.pipeline.down_sets import BitGraph, down_sets
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.exact_search.candidates import candidates
from ropewalk.pipeline.partitioners.exact_search.chains import ChainSearch
from ropewalk.pipeline.partitioners.exact_search.family_search import found_plan
from ropewalk.pipeline.partitioners.exact_search.placement import moves
from ropewalk.pipeline.partitioners.exact_search.shapes import shapes
from ropewalk.pipeline.partitioners.exact_search.stage_costs import MemoryCosts, ObjectiveCosts
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from tests.pipeline.partitioners.brute_force import requests

REQUESTS = (
    requests((3,), most=7)
    | requests((2, 2), most=7)
    | requests((4,), num_kinds=2, most=6)
    | requests((2, 3), num_kinds=2, most=6)
)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.sampled_from([1.0, 1.2, 1.7, 3.0, 1e9]))
def test_the_cost_of_a_chain_is_that_of_its_plan(request: PlanRequest, limit: float) -> None:
    graph = BitGraph.of(request.profile)
    sets = down_sets(graph, 1000)
    assert sets is not None
    them = candidates(OperatorCosts(request.profile, request.schedule.splits_backward), graph, sets)
    for shape in shapes(request):
        widths = sorted({len(move.devices) for leaving in shape.moves.moves for move in leaving})
        counted = moves(request.topology, widths, shape.num_stages or 4)
        search = ChainSearch(them, counted, ObjectiveCosts(request, them, shape.known_stages), shape.num_stages)
        slowest = search.least_slowest()
        if slowest == math.inf:
            continue
        for chain in (*search.least_slowest_of_each_form(), *search.least_total_of_each_form(slowest * limit)):
            believed = chain.total + chain.slowest
            if not request.schedule.flushes:
                believed = chain.slowest * request.micro_batches
            stages = found_plan(request, them, chain, by_model=False).stages
            if shape.num_stages in (None, len(stages)):
                assert believed == pytest.approx(objective_s(request, stages), rel=1e-9, abs=1e-15)


@settings(max_examples=25, deadline=None)
@given(REQUESTS)
def test_the_least_memory_of_a_chain_is_that_of_its_plan(request: PlanRequest) -> None:
    graph = BitGraph.of(request.profile)
    sets = down_sets(graph, 1000)
    assert sets is not None
    them = candidates(OperatorCosts(request.profile, request.schedule.splits_backward), graph, sets)
    limits = [request.memory_limit(kind) for kind in range(len(request.topology.kinds))]
    for shape in shapes(request) if min(limits) < math.inf else ():
        beyond = MemoryCosts(request, them, shape.known_stages, recompute=request.recompute)
        chain = next(iter(ChainSearch(them, shape.moves, beyond, shape.num_stages).least_slowest_of_each_form()), None)
        if chain is None:
            continue
        stages = found_plan(request, them, chain, by_model=False).stages
        over = [
            float(size) - (0.0 if (limit := request.memory_limit(link.move.kind)) == math.inf else limit)
            for link, size in zip(chain.links, plan_cost(request, stages).device_bytes, strict=True)
        ]
        assert chain.slowest == max(over)
