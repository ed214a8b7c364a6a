"""Idle time and memory equal the papers' formulas for equal stages; what a timeline says of itself."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.cost import plan_cost
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import PlanWorker, Stage, assemble
from ropewalk.pipeline.profiles import Operator, Profile, SavedValue
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.simulation.timeline_memory import most_held, most_in_flight
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.testing.schedule_conformance import Lists, joined
from tests.pipeline.simulation.equal_stages import EQUAL, Case, Times, cases

#: docs/theory.md, "Schedules and their ranges", and the papers that the schedules name.
BUBBLES: dict[str, Callable[[int, int, Times], float]] = {
    "gpipe": lambda p, v, t: (p - 1) * t.sum,
    "one_f_one_b": lambda p, v, t: (p - 1) * t.sum,
    "interleaved": lambda p, v, t: (p - 1) * t.sum / v,
    "zb_h1": lambda p, v, t: (p - 1) * (t.forward + t.input_gradient - t.weight_gradient),
    "zb_h2": lambda p, v, t: (p - 1) * (t.forward + t.input_gradient - 2 * t.weight_gradient),
    "zb_v": lambda p, v, t: 0.0,
    # They fill and drain once, however many micro-batches come between.
    "pipedream": lambda p, v, t: (p - 1) * t.sum,
    "pipedream_2bw": lambda p, v, t: (p - 1) * t.sum,
}


def played(case: Case, **options: object) -> Timeline:
    return simulate(case.plan(), case.profile(), case.topology, schedule=case.schedule, **options)  # type: ignore[arg-type]


def test_every_schedule_has_its_formula() -> None:
    assert set(BUBBLES) == set(SCHEDULES)


@pytest.mark.parametrize("name", BUBBLES)
def test_the_bubble_equals_its_formula(name: str) -> None:
    for case in cases(name):
        for slots in (1, 2):
            assert played(case, slots=slots).bubble_s == pytest.approx(
                BUBBLES[name](case.p, case.v, case.times), abs=1e-9
            ), f"{case}, {slots} slots"


@pytest.mark.soak
@pytest.mark.parametrize("name", BUBBLES)
def test_the_bubble_equals_its_formula_on_many_devices(name: str) -> None:
    for case in cases(name, most=12):
        expected = BUBBLES[name](case.p, case.v, case.times)
        assert played(case).bubble_s == pytest.approx(expected, abs=1e-9), str(case)


@pytest.mark.parametrize("name", BUBBLES)
def test_what_is_in_flight_at_most_is_the_schedules_exact_bound(name: str) -> None:
    for case in cases(name):
        for replicas in (1, 2) if case.times == EQUAL else ():  # what counts is the order alone
            case = case._replace(m=case.m * replicas, replicas=replicas)
            timeline, plan = played(case), case.plan()
            own = case.m // replicas  # an endless stream may be shorter than its bound
            for stage in range(len(plan.stages)):
                bounds = case.schedule.in_flight_at(plan, stage), case.schedule.held_at(plan, stage)
                most = most_in_flight(timeline, stage), most_held(timeline, stage)
                assert most == (min(bounds[0], own), min(bounds[1], own)), f"{case} at {stage}"
            for worker, memory in timeline.peak_memory.items():  # the profile holds as much from I to W as before
                held = min(case.schedule.held_by(plan, worker.group), own * case.v)
                assert memory.activations == 1000 * held, f"{case} at {worker}"


@pytest.mark.parametrize(
    ("name", "options"),
    [("pipedream", {}), ("pipedream", {"vertical_sync": True}), ("pipedream_2bw", {}), ("one_f_one_b", {})],
)
def test_older_weights_are_kept_as_long_as_they_are_needed_and_no_longer(name: str, options: dict[str, bool]) -> None:
    case = Case(make_schedule(name, **options), 4, 16, EQUAL)
    timeline, plan = played(case), case.plan()
    if name == "pipedream_2bw":  # a second mini-batch comes before the first is done with
        stream = case.schedule.stream(plan)
        parts = [stream.admit(case.m), stream.admit(case.m), stream.drain()]
        actions = {worker: [action for part in parts for action in part[worker]] for worker in plan.workers}
        timeline = simulate(plan, case.profile(), case.topology, actions, schedule=case.schedule)
    for stage, worker in enumerate(plan.workers):
        most = max(memory.stashed for memory in timeline.memory(worker))
        extra = case.schedule.extra_versions(plan.workers_after(stage), 1, len(plan.stages))
        assert most == 10 * extra
        assert timeline.memory(worker)[-1].stashed == 0


def test_recomputation_keeps_inputs_and_one_forward() -> None:
    case = Case(make_schedule("gpipe"), 2, 5, EQUAL)
    plan = case.plan()
    plan = dataclasses.replace(plan, stages=(plan.stages[0], dataclasses.replace(plan.stages[1], recompute=True)))
    timeline = simulate(plan, case.profile(), case.topology)
    assert [memory.activations for memory in timeline.peak_memory.values()] == [5 * 1000, 5 * 8 + 1000]
    assert timeline.compute_s == {PlanWorker(0, 0): 15, PlanWorker(1, 0): 20}


def test_no_device_needs_more_memory_than_its_plan_says() -> None:
    for name in SCHEDULES:
        for case in cases(name, most=3):
            if case.times != EQUAL:
                continue
            request = PlanRequest(case.profile(), case.topology, case.schedule, micro_batches=case.m)
            cost = plan_cost(request, case.plan().stages)
            for worker, memory in played(case).peak_memory.items():
                stage = case.plan().groups[worker.group][0]
                assert memory.total <= cost.device_bytes[stage], str(case)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["zb_h1", "zb_h2", "zb_v"])
def test_weight_gradients_may_need_more_than_forwards_saved(name: str, recompute: bool) -> None:
    # A Linear saves its input, and its weight gradient needs the gradient of its output as well. Plans counted the most
    # micro-batches before I with what they save, though most may be behind I.
    for case in cases(name, most=3):
        if case.times != EQUAL:
            continue
        profile, plan = case.profile(), case.plan()
        operators = tuple(dataclasses.replace(operator, held_bytes=2500) for operator in profile.operators)
        profile = dataclasses.replace(profile, operators=operators)
        stages = tuple(dataclasses.replace(stage, recompute=recompute) for stage in plan.stages)
        timeline = simulate(dataclasses.replace(plan, stages=stages), profile, case.topology, schedule=case.schedule)
        request = PlanRequest(profile, case.topology, case.schedule, micro_batches=case.m)
        cost = plan_cost(request, stages)
        for worker, memory in timeline.peak_memory.items():
            needed = cost.device_bytes[plan.groups[worker.group][0]]
            most = 2 * case.p + 1 if name == "zb_v" else 3  # its bounds do not know the place of a stage that goes down
            assert memory.total <= needed <= most * memory.total, f"{case} at {worker}"


@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
def test_without_measured_halves_a_plan_counts_all_that_operators_with_weights_save(name: str) -> None:
    # Of values that other operators made it counted nothing.
    case = Case(make_schedule(name), 2, 8, EQUAL)
    profile = case.profile()
    operators = tuple(
        dataclasses.replace(
            operator,
            input_gradient_s=None,
            weight_gradient_s=None,
            held_bytes=0,
            saved_bytes=0,
            saved=(SavedValue(f"op{max(0, number - 1)}", 1000),),
        )
        for number, operator in enumerate(profile.operators)
    )
    profile = dataclasses.replace(profile, operators=operators)
    timeline = simulate(case.plan(), profile, case.topology, schedule=case.schedule)
    request = PlanRequest(profile, case.topology, case.schedule, micro_batches=case.m)
    cost = plan_cost(request, case.plan().stages)
    for worker, memory in timeline.peak_memory.items():
        assert memory.total == cost.device_bytes[worker.group]
        assert memory.activations == 1000 * case.schedule.held_at(case.plan(), worker.group)


def test_input_gradients_leave_what_weight_gradients_need() -> None:
    operator = Operator(
        "op",
        forward_s=1,
        backward_s=3,
        input_gradient_s=1.5,
        weight_gradient_s=2,
        saved_bytes=100,
        held_bytes=30,
        parameters={"w": 7},
    )
    profile = Profile((operator,), ())
    plan = assemble(profile, [Stage(0, ("op",), (0,))], schedule="", micro_batches=1)
    actions = {PlanWorker(0, 0): [Action(ActionKind(kind), 0, 0, 0) for kind in "FIW"]}
    timeline = simulate(plan, profile, Topology((Level(1),)), actions, optimizer_slots=0)
    curve = [(memory.time_s, memory.activations) for memory in timeline.memory(PlanWorker(0, 0))]
    assert curve == [(0, 100), (2.5, 30), (4.5, 0)]
    assert timeline.length_s == 4.5


def test_halves_that_were_not_measured_are_halves_where_there_are_weights() -> None:
    operators = (Operator("linear", backward_s=4, parameters={"w": 1}), Operator("relu", backward_s=1))
    profile = Profile(operators, (("linear", "relu"),))
    plan = assemble(profile, [Stage(0, ("linear", "relu"), (0,))], schedule="", micro_batches=1)
    actions = {PlanWorker(0, 0): [Action(ActionKind(kind), 0, 0, 0) for kind in "FIW"]}
    assert simulate(plan, profile, Topology((Level(1),)), actions).ends[PlanWorker(0, 0)] == [0, 3, 5]


def test_without_a_flush_a_step_takes_as_long_as_in_the_long_run() -> None:
    for name in ("pipedream", "pipedream_2bw"):
        case = Case(make_schedule(name), 4, 32, Times(1, 1.5, 0.5))
        timeline = played(case)
        assert timeline.step_s == pytest.approx(32 * 3)
        assert timeline.length_s == pytest.approx((32 + 3) * 3)
        assert timeline.busiest == "device 0 (stage 0) computes 91 % of the time"


def _with_skip(case: Case) -> Profile:
    """The last stage reads the value of the first as well, as in a U-Net."""
    profile = case.profile()
    return dataclasses.replace(profile, edges=(*profile.edges, ("op0", f"op{case.p - 1}")))


@pytest.mark.parametrize("p", [5, 6, 8])
@pytest.mark.parametrize(("name", "per_step"), [("pipedream_2bw", 2), ("pipedream_2bw", 1), ("pipedream", 0)])
def test_mini_batches_that_are_admitted_one_by_one_leave_no_worker_idle(name: str, per_step: int, p: int) -> None:
    """The last stage used to go on to the end of what was admitted, and the first one then received its gradients for
    all of that before it took the next mini-batch: 6 % of the time at 5 stages, 14 % at 8.
    """
    m, num_steps = max(1, per_step * p), 12
    case = Case(make_schedule(name), p, m, EQUAL)
    plan = assemble(_with_skip(case), case.plan().stages, schedule=name, micro_batches=m)
    stream = case.schedule.stream(plan)
    parts = [stream.admit(m) for _ in range(num_steps)] + [stream.drain()]
    actions = joined(parts)
    # Two slots: with one, a value that passes over several stages holds up the one that sends it.
    timeline = simulate(plan, _with_skip(case), case.topology, actions, schedule=case.schedule, slots=2)
    assert timeline.length_s == pytest.approx((num_steps * m + p - 1) * EQUAL.sum), "no worker waits once it is full"


@pytest.mark.parametrize("p", [3, 5, 6, 8])
@pytest.mark.parametrize(("name", "per_step"), [("pipedream_2bw", 1), ("pipedream", 1), ("pipedream", 0)])
def test_as_many_steps_are_under_way_as_keep_all_workers_busy(name: str, per_step: int, p: int) -> None:
    """Each list is there when its worker comes to it, though it is handed out only when an earlier step is done. With
    two steps under way, however few pieces they had, `pipedream` idled for up to half of the time.
    """
    m, num_steps = max(1, per_step * p), 3 * p
    for times in (EQUAL, Times(1, 0.2, 0.2), Times(0.2, 1, 1)):
        case = Case(make_schedule(name), p, m, times)
        plan, stream = case.plan(), case.schedule.stream(case.plan())
        parts = [stream.admit(m) for _ in range(num_steps)] + [stream.drain()]
        timeline = simulate(plan, case.profile(), case.topology, joined(parts), schedule=case.schedule)
        ahead = case.schedule.steps_ahead(plan)
        for step in range(ahead, num_steps):
            done_s, needed_s = max(_ends(timeline, parts, step - ahead)), min(_starts(timeline, parts, step))
            assert done_s <= needed_s + 1e-9, f"{case}: step {step} is not there in time"


def _starts(timeline: Timeline, parts: list[Lists], step: int) -> list[float]:
    """When each worker comes to its list of a step."""
    places = {worker: sum(len(part[worker]) for part in parts[:step]) for worker in parts[step]}
    return [timeline.starts[worker][place] for worker, place in places.items() if parts[step][worker]]


def _ends(timeline: Timeline, parts: list[Lists], step: int) -> list[float]:
    """When each worker is done with its lists up to a step."""
    places = {worker: sum(len(part[worker]) for part in parts[: step + 1]) for worker in parts[step]}
    return [timeline.ends[worker][place - 1] for worker, place in places.items() if place]


def test_the_rate_without_a_flush_is_that_of_the_full_pipeline() -> None:
    """The first stage is the slowest, and fills those behind it at the pace of its forwards alone."""
    operators = (Operator("a", forward_s=1, backward_s=5), Operator("b", forward_s=1), Operator("c", forward_s=1))
    profile = Profile(operators, (("a", "b"), ("b", "c")))
    stages = [Stage(number, (operator.id,), (number,)) for number, operator in enumerate(operators)]
    plan = assemble(profile, stages, schedule="pipedream", micro_batches=20)
    timeline = simulate(plan, profile, Topology((Level(3),)))
    assert timeline.step_s == pytest.approx(20 * 6)
    assert timeline.length_s == pytest.approx(20 * 6)  # it never waits: the others are done while it runs ahead


def test_a_bubble_of_unequal_stages_is_what_the_slowest_waits() -> None:
    operators = (Operator("a", forward_s=1, backward_s=2, output_bytes=8), Operator("b", forward_s=3, backward_s=4))
    profile = Profile(operators, (("a", "b"),))
    plan = assemble(profile, [Stage(0, ("a",), (0,)), Stage(1, ("b",), (1,))], schedule="gpipe", micro_batches=4)
    timeline = simulate(plan, profile, Topology((Level(2),)))
    assert timeline.range_s == 1 + 4 * 7 + 2
    assert timeline.bubble_s == 3
    assert timeline.idle == pytest.approx((31 - 12 + 31 - 28) / 62)


def simulating_s(stages: int, micro_batches: int, replicas: int = 1) -> float:
    case = Case(make_schedule("one_f_one_b"), stages, micro_batches, EQUAL, replicas=replicas)
    plan, profile, actions = case.plan(), case.profile(), case.schedule.actions(case.plan())
    topology = Topology((Level(8, 1e3, 1e-3), Level(stages * replicas // 8, 1e2, 1e-2)))
    began = time.process_time()
    timeline = simulate(plan, profile, topology, actions)
    took_s = time.process_time() - began
    assert len(timeline.workers) == stages * replicas
    assert timeline.step_s > (stages + micro_batches // replicas - 2) * 3
    return took_s


def test_a_thousand_devices_are_simulated() -> None:
    simulating_s(64, 64, 16)


@pytest.mark.timing
def test_sixteen_times_the_devices_take_sixteen_times_as_long_and_not_that_squared() -> None:
    assert simulating_s(64, 64, 16) < 4 * 16 * simulating_s(64, 64)


@pytest.mark.timing
def test_four_times_the_actions_take_four_times_as_long_and_not_that_squared() -> None:
    assert simulating_s(1024, 128) < 2 * 4 * simulating_s(256, 128)
