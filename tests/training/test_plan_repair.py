"""Plans with fewer or more workers run the same operators, and everything that crosses their stages still arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker, Stage, Tie
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.testing.schedule_conformance import sample_plan
from ropewalk.training.plan_repair import for_fewer, merged, with_replicas, without_workers

SCHEDULE = make_schedule("one_f_one_b")


def plan_of(*replicas: int) -> Plan:
    """A plan with values that skip stages, a recomputing stage, and a tie of the first and last stage."""
    return sample_plan(SCHEDULE, replicas, 8)


def operators(plan: Plan) -> list[str]:
    return [operator for stage in plan.stages for operator in stage.operators]


def check(plan: Plan) -> None:
    """It can run, and every value that is sent is received."""
    SCHEDULE.check(plan)
    assert [stage.id for stage in plan.stages] == list(range(len(plan.stages)))
    for edge in plan.edges:
        assert edge.source < min(edge.targets)
        assert max(edge.targets) < len(plan.stages)
        assert edge.tensor in plan.stages[edge.source].operators
    SCHEDULE.actions(plan)


def test_a_lost_replica_is_left_out_and_the_others_keep_their_devices() -> None:
    plan = plan_of(1, 3, 2)
    fewer = without_workers(plan, {PlanWorker(1, 1), PlanWorker(2, 0)})
    assert fewer is not None
    assert [stage.devices for stage in fewer.stages] == [
        plan.stages[0].devices,
        (plan.stages[1].devices[0], plan.stages[1].devices[2]),
        plan.stages[2].devices[1:],
    ]
    assert operators(fewer) == operators(plan)
    check(fewer)


def test_without_all_replicas_of_a_stage_there_is_no_such_plan() -> None:
    assert without_workers(plan_of(1, 2), {PlanWorker(1, 0), PlanWorker(1, 1)}) is None
    assert without_workers(plan_of(1, 2), {PlanWorker(0, 0)}) is None


def test_new_replicas_have_devices_that_nobody_else_has() -> None:
    plan = plan_of(2, 1)
    wider = with_replicas(plan, 1, 3)
    devices = [device for stage in wider.stages for device in stage.devices]
    assert len(set(devices)) == len(devices) == 5
    assert wider.stages[1].devices[:1] == plan.stages[1].devices
    assert with_replicas(wider, 1, 1) == plan
    check(wider)


@pytest.mark.parametrize(
    ("stage", "replicas", "says"),
    [(2, 1, "no stage 2; the plan has stages 0 to 1"), (-1, 1, "no stage -1"), (0, 0, "at least 1")],
)
def test_what_cannot_be_is_refused(stage: int, replicas: int, says: str) -> None:
    with pytest.raises(PlanInvalid, match=says):
        with_replicas(plan_of(1, 1), stage, replicas)


def test_the_neighbour_with_fewer_operators_takes_over() -> None:
    plan = plan_of(1, 1, 1)
    for fewer, stages in ((0, (0, 1)), (2, (1, 2))):
        spread = [("first", "second"), ("lost",), ("third", "fourth")]
        spread[fewer] = spread[fewer][:1]
        parts = tuple(replace(stage, operators=own) for stage, own in zip(plan.stages, spread, strict=True))
        shorter = merged(replace(plan, stages=parts, edges=(), tied=()), 1)
        assert [stage.devices for stage in shorter.stages] == [plan.stages[0].devices, plan.stages[2].devices]
        assert shorter.stages[stages[0]].operators == sum((spread[stage] for stage in stages), ())


def test_values_and_ties_follow_the_operators_and_those_inside_a_stage_go() -> None:
    stages = tuple(Stage(number, (name,), (number,)) for number, name in enumerate("abcd"))
    edges = (
        Edge("a", 0, (1,), 8, 8),
        Edge("a2", 0, (1, 2, 3), 16, 0),
        Edge("b", 1, (2, 3), 8, 8),
        Edge("c", 2, (3,), 8, 8),
    )
    ties = (Tie("first two", (0, 1)), Tie("outer", (0, 3)), Tie("inner", (1, 2)), Tie("three", (0, 1, 2)))
    plan = Plan(stages, edges, ties, "one_f_one_b", 4)
    into_the_first = merged(plan, 1)  # both neighbours have one operator
    assert [(stage.id, stage.operators, stage.devices) for stage in into_the_first.stages] == [
        (0, ("a", "b"), (0,)),
        (1, ("c",), (2,)),
        (2, ("d",), (3,)),
    ]
    assert into_the_first.edges == (
        Edge("a2", 0, (1, 2), 16, 0),
        Edge("b", 0, (1, 2), 8, 8),
        Edge("c", 1, (2,), 8, 8),
    )
    assert into_the_first.tied == (Tie("outer", (0, 2)), Tie("inner", (0, 1)), Tie("three", (0, 1)))
    assert (into_the_first.schedule, into_the_first.micro_batches) == ("one_f_one_b", 4)
    assert not into_the_first.stages[0].recompute
    for recomputing in (0, 1):
        some = tuple(replace(stage, recompute=stage.id == recomputing) for stage in stages)
        assert merged(replace(plan, stages=some), 1).stages[0].recompute
    into_the_second = merged(plan, 0)
    assert [stage.devices for stage in into_the_second.stages] == [(1,), (2,), (3,)]
    assert merged(plan, 3).edges == (Edge("a", 0, (1,), 8, 8), Edge("a2", 0, (1, 2), 16, 0), Edge("b", 1, (2,), 8, 8))


def test_new_replicas_keep_the_devices_of_other_stages_free() -> None:
    plan = plan_of(2, 1)
    wider = with_replicas(plan, 0, 4)
    assert wider.stages[0].devices == (*plan.stages[0].devices, 3, 4) and wider.stages[1] == plan.stages[1]
    assert with_replicas(plan, 0, 1).stages[0].devices == plan.stages[0].devices[:1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 2), min_size=2, max_size=5), st.data())
def test_whoever_is_lost_one_after_the_other_all_operators_stay(replicas: list[int], data: st.DataObject) -> None:
    plan = plan_of(*replicas)
    before = operators(plan)
    while len(plan.stages) > 1:
        lost = data.draw(st.integers(0, len(plan.stages) - 1))
        plan = merged(plan, lost)
        assert operators(plan) == before
        check(plan)
        assert not plan.tied or len(plan.stages) > 1
    with pytest.raises(PlanInvalid, match="the only stage"):
        merged(plan, 0)


def test_stages_that_share_a_worker_are_not_merged() -> None:
    schedule = make_schedule("zb_v")
    with pytest.raises(PlanInvalid, match="share the worker"):
        merged(sample_plan(schedule, (1, 1), 8), 0)


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_for_fewer_processes_stages_of_lost_workers_are_merged_as_far_as_needed(num: int) -> None:
    plan = plan_of(1, 1, 1, 1)
    smaller = for_fewer(plan, plan, set(plan.workers), num)
    assert len(smaller.workers) == num and operators(smaller) == operators(plan)
    check(smaller)
    assert for_fewer(plan, plan, {PlanWorker(1, 0)}, 3) == merged(plan, 1)


def test_a_stage_that_has_lost_several_replicas_is_merged_once() -> None:
    # Each lost replica had the stage merged again: the second time its number was that of another one, or of none.
    plan = plan_of(1, 1, 2)
    lost = {PlanWorker(2, 0), PlanWorker(2, 1)}
    for num in (1, 2):  # with 1, a further process has died meanwhile; its stage comes next
        assert for_fewer(plan, plan, lost, num) == merged(plan, 2)
    plan = plan_of(1, 2, 1, 1)
    assert for_fewer(plan, plan, {PlanWorker(1, 0), PlanWorker(1, 1)}, 2) == merged(plan, 1)
