"""The plan that is chosen is near the best of all in the simulator (docs/theory.md, "Search and lower bound")."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.partitioners import make_partitioner
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.planning import choose
from ropewalk.pipeline.plans import Stage, assemble
from ropewalk.pipeline.predicting import simulated
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology
from tests.pipeline.partitioners.brute_force import chains, placements

MB = 10**6


@st.composite
def profiles(draw: st.DrawFn, most: int) -> Profile:
    """Small graphs with times and sizes as layers of real models have them."""
    operators: list[Operator] = []
    edges: list[tuple[str, str]] = []
    for number in range(draw(st.integers(2, most))):
        forward_s = draw(st.floats(0.0005, 0.004))
        operators.append(
            Operator(
                f"op{number}",
                forward_s=forward_s,
                backward_s=forward_s * draw(st.floats(1.5, 2.5)),
                output_bytes=draw(st.integers(MB // 10, 4 * MB)),
                parameters={f"w{number}": draw(st.integers(MB // 10, 20 * MB))},
            )
        )
        if number:
            sources = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=2, unique=True))
            edges += [(f"op{source}", f"op{number}") for source in sources]
    return Profile(tuple(operators), tuple(edges))


@st.composite
def requests(draw: st.DrawFn, name: str, most: int = 4) -> PlanRequest:
    """Requests for 2 to 4 devices; transfers are shorter than what stages compute, as where pipelines are used."""
    bandwidth = draw(st.floats(4e9, 16e9))
    num = draw(st.integers(2, 4))
    levels: tuple[Level, ...] = (Level(num, bandwidth, draw(st.sampled_from([0.0, 1e-5, 1e-4]))),)
    if num == 4 and draw(st.booleans()):
        levels = (Level(2, bandwidth), Level(2, bandwidth / 4, 1e-5))
    return PlanRequest(
        draw(profiles(most)), Topology(levels), make_schedule(name), micro_batches=draw(st.integers(8, 16))
    )


def step_s(request: PlanRequest, stages: tuple[Stage, ...]) -> float:
    """Seconds per step in the simulator."""
    schedule = make_schedule(request.schedule.name)
    plan = assemble(request.profile, stages, schedule=schedule.name, micro_batches=request.micro_batches)
    return simulated(request, plan, schedule).step_s


def all_plans(request: PlanRequest) -> Iterator[tuple[Stage, ...]]:
    """Every way to cut the graph, on every placement."""
    for chain in chains(request.profile):
        for devices in placements(request.topology, len(chain)) if len(chain) <= request.topology.num_devices else ():
            yield tuple(
                Stage(number, tuple(id for id in request.profile.order if id in chain[number]), run)
                for number, run in enumerate(devices)
            )


def check(request: PlanRequest) -> None:
    chosen = choose(request, make_partitioner("exact"), make_schedule(request.schedule.name))
    best_s, best = min(((step_s(request, stages), stages) for stages in all_plans(request)), key=lambda pair: pair[0])
    chosen_s = step_s(request, chosen.stages)
    assert math.isfinite(best_s)
    assert chosen_s <= 1.05 * best_s, (
        f"{request.schedule.name}, {request.micro_batches} micro-batches: {chosen_s / best_s:.3f} times the best: "
        f"{[(len(stage.operators), stage.devices) for stage in chosen.stages]} in place of "
        f"{[(len(stage.operators), stage.devices) for stage in best]}"
    )


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "pipedream"])
def test_the_chosen_plan_is_within_5_percent_of_the_best_in_the_simulator(name: str) -> None:
    @given(requests(name))
    @settings(max_examples=6, deadline=None, derandomize=True)
    def holds(request: PlanRequest) -> None:
        check(request)

    holds()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "pipedream"])
def test_of_many_graphs_none_gets_a_worse_plan(name: str) -> None:
    @given(requests(name, 5))
    @settings(max_examples=150, deadline=None, derandomize=True)
    def holds(request: PlanRequest) -> None:
        check(request)

    holds()
