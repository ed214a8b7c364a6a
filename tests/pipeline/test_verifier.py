"""Right lists pass; each way of breaking one is rejected, and the action at fault is named."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import SCHEDULES, Schedule, make_schedule
from ropewalk.pipeline.schedules.interleaved import Interleaved
from ropewalk.pipeline.schedules.pipedream import PipeDream
from ropewalk.pipeline.schedules.pipedream_2bw import PipeDream2BW
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.timeline_memory import most_held, most_in_flight
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.pipeline.verifier import verify
from ropewalk.testing.schedule_conformance import Lists, joined, sample, sample_plan


def _case(name: str, *, replicas: tuple[int, ...] = (), micro_batches: int = 6) -> tuple[Schedule, Plan, Lists]:
    schedule = make_schedule(name)
    replicas = replicas or ((1, 1, 1) if schedule.stages_per_worker == 1 else (1, 1))
    plan = sample_plan(schedule, replicas, micro_batches)
    return schedule, plan, schedule.actions(plan)


def _place(lists: Lists, code: str, worker: PlanWorker) -> int:
    return [str(action) for action in lists[worker]].index(code)


def _rejected(schedule: Schedule, plan: Plan, lists: Lists) -> ScheduleInvalid:
    with pytest.raises(ScheduleInvalid) as caught:
        verify(plan, lists, schedule)
    assert caught.value.action
    return caught.value


def _objection(schedule: Schedule, plan: Plan, lists: Lists) -> ScheduleInvalid | None:
    try:
        verify(plan, lists, schedule)
    except ScheduleInvalid as error:
        return error
    return None


# --- one mutation after another --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_dropping_any_action_is_rejected(name: str) -> None:
    schedule, plan, lists = _case(name, replicas=(2, 2), micro_batches=8)
    for worker, row in lists.items():
        for at, action in list(enumerate(row))[worker.replica :: 2]:  # what one replica does, the other one does, too
            error = _rejected(schedule, plan, lists | {worker: row[:at] + row[at + 1 :]})
            if action.kind is not ActionKind.STEP:  # the next step then has the wrong number, and is named
                assert (error.action.split("v")[0], error.worker) == (str(action).split("v")[0], str(worker)) or (
                    action.kind is ActionKind.REDUCE
                ), f"{action} was dropped, and {error.action} was named"


@pytest.mark.parametrize("name", SCHEDULES)
def test_doing_any_action_twice_is_rejected(name: str) -> None:
    schedule, plan, lists = _case(name)
    for worker, row in lists.items():
        for at, action in enumerate(row):
            error = _rejected(schedule, plan, lists | {worker: [*row[: at + 1], *row[at:]]})
            assert (error.action, error.worker) == (str(action), str(worker))
            assert f"{action} of worker {worker} (place {at + 1} of its list) was done before" in str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_wrong_version_is_rejected(name: str) -> None:
    schedule, plan, lists = _case(name)
    for worker, row in lists.items():
        for at, action in enumerate(row):
            if action.version is not None:
                wrong = replace(action, version=action.version + 1)
                error = _rejected(schedule, plan, lists | {worker: [*row[:at], wrong, *row[at + 1 :]]})
                assert error.worker == str(worker)
                assert error.action == str(wrong) or action.kind in (ActionKind.STEP, ActionKind.REDUCE)


def test_a_forward_may_not_use_a_version_before_the_step_that_makes_it() -> None:
    schedule, plan, lists = _case("pipedream")
    worker = PlanWorker(0, 0)
    row = lists[worker]
    step, forward = _place(lists, "U0v1", worker), _place(lists, "F0:3v1", worker)
    early = [*row[:step], row[forward], *row[step:forward], *row[forward + 1 :]]
    error = _rejected(schedule, plan, lists | {worker: early})
    assert error.action == "F0:3v1" and "uses version 1, but no step before it has made more than 0" in str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_action_of_another_replica_is_rejected(name: str) -> None:
    schedule, plan, lists = _case(name, replicas=(2, 2), micro_batches=8)
    for worker, row in lists.items():
        for at, action in list(enumerate(row))[worker.replica :: 2]:  # what one replica does, the other one does, too
            wrong = replace(action, replica=1 - action.replica)
            error = _rejected(schedule, plan, lists | {worker: [*row[:at], wrong, *row[at + 1 :]]})
            assert (error.action, error.worker) == (str(wrong), str(worker))
            assert "another replica" in str(error) or "replicas take micro-batches in turn" in str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_wrong_peer_is_rejected(name: str) -> None:
    schedule, plan, lists = _case(name)
    for worker, row in lists.items():
        for at, action in enumerate(row):
            if action.peer is not None:
                peer = (action.peer + 1, action.stage, len(plan.stages), -1)[at % 4] % (len(plan.stages) + 1)
                wrong = replace(action, peer=peer)
                error = _rejected(schedule, plan, lists | {worker: [*row[:at], wrong, *row[at + 1 :]]})
                assert (error.action, error.worker) == (str(wrong), str(worker)) or "was done before" in str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_needs_a_receive_may_not_come_before_it(name: str) -> None:
    schedule, plan, lists = _case(name)
    for worker, row in lists.items():
        for at, action in enumerate(row[1:], start=1):
            before = row[at - 1]
            if (
                before.kind is ActionKind.RECEIVE
                and (before.stage, before.micro_batch) == (action.stage, action.micro_batch)
                and action.kind
                in ((ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT) if before.is_gradient else (ActionKind.FORWARD,))
            ):
                swapped = [*row[: at - 1], action, before, *row[at + 1 :]]
                error = _rejected(schedule, plan, lists | {worker: swapped})
                assert error.action == str(action)
                assert f"comes before {before}, which it needs" in str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_sent_before_it_is_made(name: str) -> None:
    schedule, plan, lists = _case(name)
    for worker, row in lists.items():
        for at, action in enumerate(row[1:], start=1):
            before = row[at - 1]
            if action.kind is ActionKind.SEND and before.kind not in (ActionKind.SEND, ActionKind.RECEIVE):
                swapped = [*row[: at - 1], action, before, *row[at + 1 :]]
                error = _rejected(schedule, plan, lists | {worker: swapped})
                assert error.action == str(action)
                assert f"comes before {before}, which makes it" in str(error)


def test_a_step_has_all_gradients_of_its_round_and_none_of_a_later_one() -> None:
    schedule = make_schedule("pipedream_2bw")
    plan = sample_plan(schedule, (1,), 2)
    stream = schedule.stream(plan)
    lists = joined([stream.admit(4), stream.drain()])
    worker = PlanWorker(0, 0)
    row = [str(action) for action in lists[worker]]
    assert " ".join(row) == "F0:0v0 B0:0v0 F0:1v0 B0:1v0 U0v1 F0:2v0 B0:2v0 F0:3v0 B0:3v0 U0v2"
    for place, said in (
        (3, "U0v1 of worker 0.0 (place 3 of its list) comes before B0:1v0, whose gradient belongs to it"),
        (6, "U0v1 of worker 0.0 (place 6 of its list) comes after B0:2v0, whose gradient belongs to a later update"),
    ):
        moved = list(lists[worker])
        moved.insert(place, moved.pop(4))
        with pytest.raises(ScheduleInvalid) as caught:
            verify(plan, {worker: moved}, num_micro_batches=4)
        assert said in str(caught.value) and caught.value.action == "U0v1"


def test_more_versions_or_more_on_a_whole_worker_than_the_schedule_says_are_rejected() -> None:
    class FewVersions(PipeDream):
        def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
            return 1

    class FewHeld(Interleaved):
        def held_by(self, plan: Plan, group: int) -> int:
            return 4

    _, plan, lists = _case("pipedream")
    error = _rejected(FewVersions(), plan, lists)
    assert "makes it 3 versions of its stage's weights; pipedream keeps at most 2" in str(error)
    _, plan, lists = _case("interleaved")
    error = _rejected(FewHeld(), plan, lists)
    assert "makes it 5 micro-batches at all stages of its worker; interleaved keeps at most 4" in str(error)


def test_a_forward_with_older_weights_than_the_newest_needs_both_versions() -> None:
    class NewestOnly(PipeDream2BW):
        def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
            return 0

    schedule = NewestOnly()
    plan = sample_plan(schedule, (1,), 2)
    stream = schedule.stream(plan)
    lists = joined([stream.admit(4), stream.drain()])  # F0:2v0 comes after U0v1, and all forwards have version 0
    with pytest.raises(
        ScheduleInvalid, match="it 2 versions of its stage's weights; pipedream_2bw keeps at most 1"
    ) as caught:
        verify(plan, lists, schedule, num_micro_batches=4)
    assert caught.value.action == "F0:2v0"


def test_replicas_that_reduce_their_stages_in_different_orders_are_rejected() -> None:
    schedule, plan, lists = _case("interleaved", replicas=(2,), micro_batches=2)
    *front, first, second, one, other = lists[PlanWorker(0, 0)]
    assert (str(first), str(second)) == ("A0v1/replicas", "A1v1/replicas")
    error = _rejected(schedule, plan, lists | {PlanWorker(0, 0): [*front, second, first, one, other]})
    assert error.action == "A1v1/replicas" and "for worker 0.1 to take part" in str(error)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_step_comes_before_the_reductions_of_its_gradients(name: str) -> None:
    schedule, plan, lists = _case(name, replicas=(2, 2, 2), micro_batches=12)
    num_seen = 0
    for worker, row in lists.items():
        for at, action in enumerate(row):
            if action.kind is ActionKind.REDUCE:
                step = next(
                    k for k in range(at, len(row)) if row[k].kind is ActionKind.STEP and row[k].stage == action.stage
                )
                moved = [*row[:at], row[step], *row[at:step], *row[step + 1 :]]
                error = _rejected(schedule, plan, lists | {worker: moved})
                assert error.action == str(row[step])
                num_seen += 1
    assert num_seen >= 6


def test_a_norm_comes_after_all_other_reductions() -> None:
    schedule = make_schedule("one_f_one_b", norm=True)
    plan = sample_plan(schedule, (2, 2, 2), 4)
    lists = schedule.actions(plan)
    verify(plan, lists, schedule)
    row = lists[PlanWorker(0, 0)]
    *front, tied, replicas, norm, step = row
    assert [action.group for action in (tied, replicas, norm)] == [
        ReduceGroup.TIED,
        ReduceGroup.REPLICAS,
        ReduceGroup.NORM,
    ]
    error = _rejected(schedule, plan, lists | {PlanWorker(0, 0): [*front, tied, norm, replicas, step]})
    assert error.action == "A0v1/norm" and "comes before A0v1/replicas, which it needs" in str(error)
    error = _rejected(make_schedule("one_f_one_b"), plan, lists)
    assert error.action == "A0v1/norm" and "is not called for" in str(error)


# --- what the messages say --------------------------------------------------------------------------------------------


def test_send_and_receive_in_a_circle_are_rejected_with_who_waits_for_whom() -> None:
    schedule, plan, lists = _case("one_f_one_b", replicas=(1, 1), micro_batches=2)
    first, second = PlanWorker(0, 0), PlanWorker(1, 0)
    row = lists[first]
    assert [str(a) for a in row] == (
        ["F0:0v0", "S0:0>1/op0", "F0:1v0", "S0:1>1/op0", "R0:0<1/op0", "B0:0v0", "R0:1<1/op0", "B0:1v0", "U0v1"]
    )
    cyclic = [row[0], row[1], row[2], row[4], row[5], row[3], *row[6:]]
    verify(plan, lists | {first: cyclic}, make_schedule("one_f_one_b"))  # later, but no circle: F1:1 comes after B1:0
    other = lists[second]
    at = _place(lists, "R1:1<0/op0", second)
    early = [*other[:1], other[at], *other[1:at], *other[at + 1 :]]
    error = _rejected(schedule, plan, {first: cyclic, second: early})
    assert (error.action, error.worker) == ("R0:0<1/op0", "0.0")
    assert "worker 0.0 at R0:0<1/op0 for worker 1.0 to send it" in str(error)
    assert "worker 1.0 at R1:1<0/op0 for worker 0.0 to send it" in str(error)


def test_a_message_draws_the_grid_with_the_place_marked_and_survives_pickling() -> None:
    schedule, plan, lists = _case("gpipe", replicas=(1, 1), micro_batches=2)
    row = lists[PlanWorker(1, 0)]
    at = _place(lists, "F1:1v0", PlanWorker(1, 0))
    lists[PlanWorker(1, 0)] = [*row[:at], replace(row[at], version=3), *row[at + 1 :]]
    error = _rejected(schedule, plan, lists)
    assert str(error).splitlines() == [
        "F1:1v3 of worker 1.0 (place 3 of its list) should use version 0 of the weights",
        "worker 0 | F0 F1 .. .. .. .. B1 B1 .. B0 B0",
        "worker 1 | .. F0 F1 C1 B1 B1 C0 B0 B0 .. ..",
        "                 ^ F1:1v3 of worker 1",
    ]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Action(ActionKind.FORWARD, 9, 0, 0, 0), "F9:0v0 of worker 0.0 .* names stage 9; the plan has stages 0 to 2"),
        (Action(ActionKind.FORWARD, 1, 0, 0, 0), "F1:0v0 of worker 0.0 .* is for stage 1, which runs on group 1"),
        (Action(ActionKind.FORWARD, 0, 0, 77, 0), "F0:77v0 of worker 0.0 .* names micro-batch 77; there are 0 to 5"),
        (Action(ActionKind.FORWARD, 3, 0, 0, 0), "names stage 3; the plan has stages 0 to 2"),
        (Action(ActionKind.FORWARD, -1, 0, 0, 0), "names stage -1; the plan has stages 0 to 2"),
        (Action(ActionKind.FORWARD, 0, 0, 6, 0), "names micro-batch 6; there are 0 to 5"),
        (Action(ActionKind.FORWARD, 0, 0, -1, 0), "names micro-batch -1; there are 0 to 5"),
        (Action(ActionKind.FORWARD, 0, 0, None, 0), "names micro-batch None"),
        (Action(ActionKind.FORWARD, 0, 0, 1, 0), "F0:1v0 of worker 0.0 .* belongs to worker 0.1: replicas take"),
        (Action(ActionKind.RECOMPUTE, 0, 0, 0, 0), "C0:0v0 .* is not wanted: .* only stages that recompute"),
        (Action(ActionKind.INPUT_GRADIENT, 0, 0, 0, 0), "never does W0:0|B0:0v0 .* is not wanted"),
        (
            Action(ActionKind.SEND, 0, 0, 0, edge="nothing", peer=1),
            "S0:0>1/nothing .* names a tensor that does not pass",
        ),
        (Action(ActionKind.RECEIVE, 0, 0, 0, edge="mask", peer=2), "names a tensor that does not pass"),
        (Action(ActionKind.SEND, 0, 0, 0, edge="s0>1/t"), "names a tensor that does not pass"),
        (Action(ActionKind.SEND, 0, 0, 0, peer=1), "names a tensor that does not pass"),
        (Action(ActionKind.STEP, 0, 0, version=2), "U0v2 .* is not called for"),
        (Action(ActionKind.REDUCE, 0, 0, version=1, group=ReduceGroup.NORM), "A0v1/norm .* is not called for"),
        (Action(ActionKind.REDUCE, 0, 0, version=1), "does not say rightly whether it is a reduction"),
    ],
)
def test_what_the_plan_does_not_have_is_rejected(wrong: Action, said: str) -> None:
    schedule, plan, lists = _case("one_f_one_b", replicas=(2, 2, 2))
    lists[PlanWorker(0, 0)].append(wrong)
    with pytest.raises(ScheduleInvalid, match=said):
        verify(plan, lists, schedule)
    assert _rejected(schedule, plan, lists).worker == "0.0"


def test_a_worker_that_the_plan_does_not_have_is_rejected() -> None:
    schedule, plan, lists = _case("gpipe")
    with pytest.raises(ScheduleInvalid, match=r"worker 7\.0, which the plan does not have"):
        verify(plan, lists | {PlanWorker(8, 0): [], PlanWorker(7, 0): []}, schedule)
    with pytest.raises(ScheduleInvalid) as caught:
        verify(plan, lists | {PlanWorker(8, 0): [], PlanWorker(7, 0): []}, schedule)
    assert caught.value.worker == "7.0"


def test_steps_make_one_version_after_the_other() -> None:
    schedule = make_schedule("pipedream_2bw")
    plan = sample_plan(schedule, (1,), 2)
    stream = schedule.stream(plan)
    lists = joined([stream.admit(4), stream.drain()])
    worker = PlanWorker(0, 0)
    renamed = {"U0v1": 2, "U0v2": 1}
    row = [replace(action, version=renamed.get(str(action), action.version)) for action in lists[worker]]
    with pytest.raises(ScheduleInvalid, match=r"U0v2 .* should make version 1, the next of this stage"):
        verify(plan, {worker: row}, num_micro_batches=4)


def test_more_in_flight_than_the_schedule_says_is_rejected_at_the_forward_that_is_too_many() -> None:
    _, plan, lists = _case("gpipe", replicas=(1, 1, 1), micro_batches=6)
    with pytest.raises(
        ScheduleInvalid, match="makes it 4 micro-batches between forward and backward; one_f_one_b keeps"
    ):
        verify(plan, lists, "one_f_one_b")
    assert _rejected(make_schedule("one_f_one_b"), plan, lists).action == "F0:3v0"


def test_one_forward_too_many_between_the_backwards_is_rejected_as_such() -> None:
    schedule, plan, lists = _case("one_f_one_b", replicas=(1, 1), micro_batches=6)
    worker = PlanWorker(1, 0)  # it keeps one at a time
    row = lists[worker]
    forward, backward = _place(lists, "F1:4v0", worker), _place(lists, "B1:3v0", worker)
    early = [action for action in row[backward:forward] if action.micro_batch == 4] + [row[forward]]
    moved = [*row[:backward], *early, *(action for action in row[backward:] if action not in early)]
    error = _rejected(schedule, plan, lists | {worker: moved})
    assert error.action == "F1:4v0" and "makes it 2 micro-batches between forward and backward" in str(error)


def test_a_stage_may_step_before_another_one_of_its_worker_has_reduced() -> None:
    schedule, plan, lists = _case("interleaved", replicas=(2,), micro_batches=2)
    for worker, row in lists.items():
        *front, first, second, step, other = row
        assert [str(action) for action in (first, second, step, other)] == [
            "A0v1/replicas",
            "A1v1/replicas",
            "U0v1",
            "U1v1",
        ]
        lists[worker] = [*front, first, step, second, other]
    verify(plan, lists, schedule)


def test_weight_gradients_later_than_the_schedule_says_are_rejected() -> None:
    schedule, plan, lists = _case("zb_h1", replicas=(1, 1), micro_batches=6)
    row = lists[PlanWorker(0, 0)]
    weights = [action for action in row if action.kind is ActionKind.WEIGHT_GRADIENT]
    late = [action for action in row if action.kind is not ActionKind.WEIGHT_GRADIENT]
    error = _rejected(schedule, plan, lists | {PlanWorker(0, 0): [*late[:-1], *weights, late[-1]]})
    assert "before the end of their backward; zb_h1 keeps at most 2" in str(error)


def test_pieces_of_a_run_without_flush_are_verified_through_fill_and_drain() -> None:
    schedule = make_schedule("pipedream_2bw")
    plan = sample_plan(schedule, (1, 2), 6)
    stream = schedule.stream(plan)
    parts = [stream.admit(6), stream.admit(2), stream.admit(2), stream.drain()]
    lists = {worker: [action for part in parts for action in part[worker]] for worker in plan.workers}
    verify(plan, lists, num_micro_batches=10)
    with pytest.raises(ScheduleInvalid, match="names micro-batch 8; there are 0 to 7"):
        verify(plan, lists, num_micro_batches=8)
    with pytest.raises(ScheduleInvalid, match="never does F0:10"):
        verify(plan, lists, num_micro_batches=11)


# --- whatever the plan ------------------------------------------------------------------------------------------------

_REPLICAS = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)


def _check_a_random_move(name: str, replicas: tuple[int, ...], micro_batches: int, data: st.DataObject) -> None:
    schedule = make_schedule(name)
    if schedule.uniform_replicas:
        replicas = (replicas[0],) * len(replicas)
    profile, plan = sample(schedule, replicas, micro_batches)
    try:
        lists = schedule.actions(plan)
    except ScheduleInvalid:
        return
    verify(plan, lists, schedule)
    worker = data.draw(st.sampled_from(plan.workers))
    row = list(lists[worker])
    source, target = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, len(row) - 1))
    row.insert(target, row.pop(source))
    moved = lists | {worker: row}
    if (error := _objection(schedule, plan, moved)) is not None:
        assert error.action and error.worker
        return
    topology = Topology((Level(sum(replicas), bandwidth=64.0, latency_s=0.01),))
    timeline = simulate(plan, profile, topology, moved, schedule=schedule, slots=1)
    for stage in range(len(plan.stages)):
        assert most_in_flight(timeline, stage) <= schedule.in_flight_at(plan, stage)
        assert most_held(timeline, stage) <= schedule.held_at(plan, stage)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(SCHEDULES)), _REPLICAS, st.integers(1, 12), st.data())
def test_a_random_move_is_rejected_or_stays_within_every_bound(
    name: str, replicas: tuple[int, ...], micro_batches: int, data: st.DataObject
) -> None:
    _check_a_random_move(name, replicas, micro_batches, data)


@pytest.mark.soak
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(SCHEDULES)), _REPLICAS, st.integers(1, 24), st.data())
def test_thousands_of_random_moves_are_rejected_or_stay_within_every_bound(
    name: str, replicas: tuple[int, ...], micro_batches: int, data: st.DataObject
) -> None:
    _check_a_random_move(name, replicas, micro_batches, data)
