from __future__ import annotations

from dataclasses import replace

import pytest

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import SCHEDULES
from ropewalk.pipeline.schedules.one_f_one_b import OneFOneB
from ropewalk.training.recorder import Recorder, records_of
from tests.training.executed import executed_matches
from tests.training.played_records import as_if_real, player_of, simulated, train


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_player_does_what_the_schedule_says(name: str, replicas: int) -> None:
    player = player_of(name, replicas=replicas, micro_batches=4 * replicas)
    train(player, 3)
    executed_matches(player.plan, player.schedule, records_of(player.recorded))


@pytest.mark.parametrize("name", ["gpipe", "pipedream", "pipedream_2bw"])
def test_short_mini_batches_and_drains_are_told(name: str) -> None:
    player = player_of(name)
    train(player, 2)
    train(player, 1, num_samples=3)  # three micro-batches, and drained
    train(player, 2)
    records = records_of(player.recorded)
    executed_matches(player.plan, name, records, admitted=[4, 4, "drain", 3, "drain", 4, 4, "drain"])
    with pytest.raises(ScheduleInvalid, match="the schedule says"):
        executed_matches(player.plan, name, records, admitted=[4, 4, "drain", 4, 4, 4, "drain"])


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_h1", "pipedream"])
def test_two_actions_in_the_other_order_are_found(name: str) -> None:
    player = player_of(name)
    train(player, 3)
    records = records_of(player.recorded)
    worker = player.plan.workers[1]
    actions = list(records[worker].actions)
    place = next(n for n, action in enumerate(actions) if n > 9 and action.kind is ActionKind.FORWARD)
    actions[place], actions[place + 1] = actions[place + 1], actions[place]
    records[worker] = replace(records[worker], actions=tuple(actions))
    with pytest.raises(ScheduleInvalid, match=rf"worker 1\.0 did .* as its action {place} ") as raised:
        executed_matches(player.plan, name, records)
    assert (raised.value.action, raised.value.worker) == (str(actions[place]), "1.0")
    assert f"says {actions[place + 1]};" in str(raised.value)


@pytest.mark.parametrize("name", ["one_f_one_b", "pipedream"])
def test_what_was_left_out_or_done_too_much_is_found(name: str) -> None:
    player = player_of(name)
    train(player, 2)
    records = records_of(player.recorded)
    worker, record = player.plan.workers[0], records_of(player.recorded)[player.plan.workers[0]]
    executed_matches(player.plan, name, {**records, worker: replace(record, actions=record.actions[:-1])}, whole=False)
    with pytest.raises(ScheduleInvalid, match=f"and not yet {record.actions[-1]}; drain before"):
        executed_matches(player.plan, name, {**records, worker: replace(record, actions=record.actions[:-1])})
    more = replace(record, actions=(*record.actions, record.actions[0]))
    with pytest.raises(ScheduleInvalid, match="the schedule says nothing more"):
        executed_matches(player.plan, name, {**records, worker: more})
    with pytest.raises(ScheduleInvalid, match=r"worker 1\.0 did 0 actions of"):
        executed_matches(player.plan, name, {worker: record})


def test_what_a_ring_still_has_is_compared() -> None:
    timeline = simulated("one_f_one_b", micro_batches=4)
    records = as_if_real(timeline, num_steps=5, capacity=30)
    assert all(record.num_forgotten for record in records.values())
    executed_matches(timeline.plan, "one_f_one_b", records)
    worker, record = next(iter(records.items()))
    records[worker] = replace(record, num_forgotten=record.num_forgotten - 1)
    with pytest.raises(ScheduleInvalid, match="the schedule says"):
        executed_matches(timeline.plan, "one_f_one_b", records)


def test_another_version_of_the_weights_is_found() -> None:
    player = player_of("pipedream")
    train(player, 2)
    records = records_of(player.recorded)
    worker, record = player.plan.workers[0], records[player.plan.workers[0]]
    place = next(n for n, action in enumerate(record.actions) if action.kind is ActionKind.BACKWARD and action.version)
    actions = list(record.actions)
    actions[place] = replace(actions[place], version=0)
    with pytest.raises(ScheduleInvalid, match=f"as its action {place} "):
        executed_matches(player.plan, "pipedream", {**records, worker: replace(record, actions=tuple(actions))})


class Hasty(OneFOneB):
    """Goes backward before it went forward."""

    name = "hasty"

    def actions(self, plan: Plan, *, num_micro_batches: int | None = None) -> dict[PlanWorker, list[Action]]:
        whole = super().actions(plan, num_micro_batches=num_micro_batches)
        return {worker: [own[1], own[0], *own[2:]] for worker, own in whole.items()}


def test_a_schedule_that_breaks_a_law_is_not_taken_as_the_measure() -> None:
    plan = simulated("one_f_one_b", 1, 2).plan
    recorder = Recorder(plan.workers[0])
    for action in Hasty().actions(plan)[plan.workers[0]]:
        recorder.record(action, 0, 1)
    with pytest.raises(ScheduleInvalid):
        executed_matches(plan, Hasty(), {plan.workers[0]: recorder.take()})
