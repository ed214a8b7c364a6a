"""The cost of plans, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ropewalk.pipeline.cost import boundary, objective_s, plan_cost
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import Stage, assemble
from ropewalk.pipeline.profiles import Operator, Profile, SavedValue
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.steady import steady_actions
from ropewalk.pipeline.topology import DeviceKind, Level, Topology

#: a -> b -> c, and a -> c: the value of a crosses both cuts.
PROFILE = Profile(
    (
        Operator("a", forward_s=1.0, backward_s=2.0, output_bytes=100, parameters={"w": 40, "tied": 8}, saved_bytes=7),
        Operator("b", forward_s=2.0, backward_s=3.0, output_bytes=60, gradient_bytes=20, saved=(SavedValue("a", 100),)),
        Operator(
            "c", forward_s=1.0, backward_s=1.0, parameters={"tied": 8}, saved_bytes=5, saved=(SavedValue("a", 100),)
        ),
    ),
    (("a", "b"), ("b", "c"), ("a", "c")),
)
STRAIGHT = (Stage(0, ("a",), (0,)), Stage(1, ("b",), (1,)), Stage(2, ("c",), (2,)))


def request_for(schedule: str = "one_f_one_b", levels: tuple[Level, ...] = (Level(4, 100.0, 0.5),)) -> PlanRequest:
    return PlanRequest(PROFILE, Topology(levels), make_schedule(schedule), micro_batches=4, optimizer_slots=1)


def test_a_stage_reads_each_value_once_and_counts_shared_ones_once() -> None:
    costs = OperatorCosts(PROFILE)
    ab = costs.stage(("a", "b"))
    assert (ab.in_bytes, ab.out_bytes, ab.out_gradient_bytes) == (0, 160, 120)
    assert (ab.weight_bytes, ab.saved_bytes) == (48, 7 + 60 + 100)
    assert costs.stage(("a", "c")).weight_bytes == 48
    bc = costs.stage(("b", "c"))
    assert (bc.in_bytes, bc.in_gradient_bytes, bc.saved_bytes) == (100, 100, 60 + 5 + 100)


@pytest.mark.parametrize("micro_batches", [4, 5, 8, 9])
@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
def test_replicas_without_a_flush_sum_their_gradients_once_for_each_update(name: str, micro_batches: int) -> None:
    # 2BW was charged a sum for each micro-batch of a replica: 8 micro-batches on 2 replicas, 4 sums instead of 1.
    profile = Profile((Operator("a", forward_s=1.0, backward_s=2.0, parameters={"w": 10}),), ())
    topology, schedule = Topology((Level(2, 1.0),)), make_schedule(name)
    request = PlanRequest(profile, topology, schedule, micro_batches=micro_batches)
    stages = [Stage(0, ("a",), (0, 1))]
    plan = assemble(profile, stages, schedule=name, micro_batches=micro_batches)
    long_run = simulate(plan, profile, topology, steady_actions(plan, schedule), schedule=schedule)
    assert plan_cost(request, stages).objective_s == pytest.approx(long_run.step_s)


def test_a_step_with_a_flush_is_the_sum_the_further_rounds_and_the_links() -> None:
    cost = plan_cost(request_for(), STRAIGHT)
    # b: in 100 + gradient of its own 20; out 60 + gradient 100: 160 bytes at 100 B/s are 1.6 s, less than its 5 s.
    assert [share.link_s for share in cost.stages] == pytest.approx([1.0, 1.6, 1.6])
    links = 2 * (100 / 100 + 0.5) + (160 / 100 + 0.5) + (120 / 100 + 0.5)
    assert cost.objective_s == pytest.approx((3 + 5 + 2) + 3 * 5 + links)
    assert (cost.bottleneck, cost.bottleneck_s) == (1, 5.0)


def test_replicas_share_the_rounds_and_add_what_of_their_reduce_is_not_hidden() -> None:
    stages = (Stage(0, ("a", "b"), (0, 1)), Stage(1, ("c",), (2,)))
    cost = plan_cost(request_for(), stages)
    reduce_s = 2 * (1 / 2) * 48 / 100 + 0.5  # two replicas send each other all of it, in one message
    links = (160 / 100 + 0.5) + (120 / 100 + 0.5)
    assert cost.objective_s == pytest.approx((8 + 2) + (4 / 2 - 1) * 8 + links + reduce_s)
    late = (Stage(0, ("a",), (0,)), Stage(1, ("b", "c"), (1, 2)))
    assert plan_cost(request_for(), late).stages[1].exposed_s == 0  # a's backward takes 2 s, its Reduce 0.58 s


def test_without_a_flush_a_plan_is_as_slow_as_its_slowest_stage_with_its_reduce() -> None:
    stages = (Stage(0, ("a", "b"), (0, 1)), Stage(1, ("c",), (2,)))
    assert plan_cost(request_for("pipedream"), stages).objective_s == pytest.approx(4 * (8 + 0.98) / 2)


def test_pure_data_parallelism_takes_what_a_clock_shows() -> None:
    whole = (Stage(0, ("a", "b", "c"), (0, 1, 2)),)
    cost = plan_cost(request_for(levels=(Level(3),)), whole)
    assert cost.objective_s == pytest.approx(math.ceil(4 / 3) * 10)


def test_memory_counts_copies_of_weights_and_what_is_in_flight() -> None:
    stage = plan_cost(request_for("pipedream"), STRAIGHT).stages[0]
    assert stage.in_flight == 3
    memory = stage.memory
    assert (memory.weights, memory.gradients, memory.optimizer, memory.stashed) == (48, 48, 48, 96)
    assert memory.activations == 3 * 7
    again = plan_cost(request_for("pipedream"), (*STRAIGHT[:1], replace(STRAIGHT[1], recompute=True), STRAIGHT[2]))
    assert again.stages[1].memory.activations == 2 * 100 + 160
    assert again.stages[1].backward_s == 5.0


def test_a_plan_that_does_not_fit_has_no_objective() -> None:
    needed = max(plan_cost(request_for(), STRAIGHT).device_bytes)
    assert objective_s(replace(request_for(), memory_bytes=needed), STRAIGHT) < math.inf
    assert objective_s(replace(request_for(), memory_bytes=needed - 1), STRAIGHT) == math.inf


def test_a_faster_kind_takes_less_time() -> None:
    topology = Topology((Level(3),), (DeviceKind("slow"), DeviceKind("fast", speed=4.0)), (0, 1, 0))
    shares = plan_cost(replace(request_for(), topology=topology), STRAIGHT).stages
    assert [share.compute_s for share in shares] == [3.0, 1.25, 2.0]


def test_neighbours_meet_over_the_level_of_the_replicas_that_do() -> None:
    request = request_for(levels=(Level(2), Level(2, 10.0)))
    nested = (Stage(0, ("a",), (0, 2)), Stage(1, ("b", "c"), (1, 3)))  # micro-batches stay in their server
    assert boundary(request, nested, 0) == 0
    across = (Stage(0, ("a",), (0, 1)), Stage(1, ("b", "c"), (2, 3)))
    assert boundary(request, across, 0) == 1


def test_stages_on_one_device_add_up_and_send_nothing_to_each_other() -> None:
    there_and_back = (
        Stage(0, ("a",), (0,)),
        Stage(1, ("b",), (1,)),
        Stage(2, ("c",), (1,)),
    )
    request = request_for()
    cost = plan_cost(request, there_and_back)
    assert (cost.bottleneck, cost.bottleneck_s) == (1, 7.0)
    assert cost.stages[2].transit_s == 0.0
    assert cost.device_bytes[1] == cost.device_bytes[2]
