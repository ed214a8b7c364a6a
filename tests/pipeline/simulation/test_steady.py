"""The rate that a few steady micro-batches show is that of a long run."""

from __future__ import annotations

import pytest

from ropewalk.pipeline.plans import Plan, Stage, assemble
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.steady import steady_actions
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Level, Topology
from tests.pipeline.simulation.equal_stages import EQUAL, Case


def profile_of(*seconds: float, weight_bytes: int = 0) -> Profile:
    """A chain of operators with these seconds of forward and backward together."""
    operators = tuple(
        Operator(
            f"op{number}",
            forward_s=of / 3,
            backward_s=of * 2 / 3,
            output_bytes=1,
            parameters={f"w{number}": weight_bytes},
        )
        for number, of in enumerate(seconds)
    )
    return Profile(operators, tuple((f"op{number}", f"op{number + 1}") for number in range(len(seconds) - 1)))


def plan_of(profile: Profile, replicas: tuple[int, ...], schedule: str, micro_batches: int) -> Plan:
    devices = iter(range(sum(replicas)))
    stages = [Stage(s, (f"op{s}",), tuple(next(devices) for _ in range(num))) for s, num in enumerate(replicas)]
    return assemble(profile, stages, schedule=schedule, micro_batches=micro_batches)


def steady(profile: Profile, plan: Plan, topology: Topology) -> Timeline:
    schedule = make_schedule(plan.schedule)
    return simulate(plan, profile, topology, steady_actions(plan, schedule), schedule=schedule)


@pytest.mark.parametrize("micro_batches", [4, 8, 40])
def test_each_mini_batch_of_2bw_has_the_sum_of_its_gradients(micro_batches: int) -> None:
    # The mini-batch was simulated with as many micro-batches as show the rate, and so had one sum at the very end.
    profile = profile_of(3.0, weight_bytes=100)
    plan = plan_of(profile, (2,), "pipedream_2bw", micro_batches)
    timeline = steady(profile, plan, Topology((Level(2, 10.0),)))
    assert timeline.step_s == pytest.approx(micro_batches / 2 * 3.0 + 100 / 10.0)


def test_a_pipeline_of_2bw_has_the_rate_of_many_mini_batches() -> None:
    profile = profile_of(4.0, 2.0, weight_bytes=60)
    plan, topology = plan_of(profile, (2, 1), "pipedream_2bw", 6), Topology((Level(3, 20.0),))
    schedule = make_schedule("pipedream_2bw")
    many = schedule.actions(plan, num_micro_batches=60 * 6)
    long_run = simulate(plan, profile, topology, many, schedule=schedule)
    assert steady(profile, plan, topology).step_s == pytest.approx(long_run.step_s, rel=1e-6)
    assert long_run.step_s > 6 * 2.0 + 1.0


def test_unequal_replicas_that_meet_seldom_are_as_fast_as_in_the_long_run() -> None:
    # They meet every 105 micro-batches, more than a half of those simulated: filling and emptying counted, 10 %.
    profile, topology, schedule = profile_of(7.0, 5.0, 3.0), Topology((Level(15),)), make_schedule("pipedream")
    plan = plan_of(profile, (7, 5, 3), "pipedream", 1)
    actions = schedule.actions(plan, num_micro_batches=1260)
    long_run = simulate(plan, profile, topology, actions, schedule=schedule)
    assert steady(profile, plan, topology).step_s == pytest.approx(long_run.step_s, rel=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_stays_as_it_is(name: str) -> None:
    case = Case(make_schedule(name), 2, 8, EQUAL)
    timeline = steady(case.profile(), case.plan(), case.topology)
    assert timeline.plan == case.plan()
    if case.schedule.flushes:
        assert timeline.actions == case.schedule.actions(case.plan())


def test_few_micro_batches_without_a_flush_take_their_part_of_the_whole_time() -> None:
    profile = profile_of(3.0)
    plan, schedule = plan_of(profile, (1,), "pipedream", 6), make_schedule("pipedream")
    actions = schedule.actions(plan, num_micro_batches=2)
    timeline = simulate(plan, profile, Topology((Level(1),)), actions, schedule=schedule)
    assert (timeline.length_s, timeline.step_s) == (pytest.approx(6.0), pytest.approx(18.0))
