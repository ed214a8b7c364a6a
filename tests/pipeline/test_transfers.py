"""Where Send and Receive stand, and that long skip connections do not deadlock with one slot."""

from __future__ import annotations

import pytest

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.flow import standstill_of
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker, Stage, Tie
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.endless_play import EndlessPlay
from ropewalk.pipeline.transfers import with_transfers
from ropewalk.pipeline.updates import members, update
from ropewalk.pipeline.verifier import verify


def _plan(num_stages: int, edges: tuple[Edge, ...], micro_batches: int, ties: tuple[Tie, ...] = ()) -> Plan:
    stages = tuple(Stage(stage, (f"op{stage}",), (stage,)) for stage in range(num_stages))
    return Plan(stages, edges, ties, "one_f_one_b", micro_batches)


def _chain(num_stages: int) -> tuple[Edge, ...]:
    return tuple(Edge(f"op{stage}", stage, (stage + 1,), 4, 4) for stage in range(num_stages - 1))


def test_receives_stand_right_before_and_sends_right_after_what_computes_by_peer_and_tensor() -> None:
    plan = _plan(3, (Edge("b", 0, (1, 2), 4, 4), Edge("a", 0, (2,), 4, 0), Edge("c", 1, (2,), 4, 4)), 1)
    lists = make_schedule("gpipe").actions(plan)
    assert [" ".join(map(str, row)) for row in lists.values()] == [
        "F0:0v0 S0:0>1/b S0:0>2/a S0:0>2/b R0:0<1/b R0:0<2/b B0:0v0 U0v1",
        "R1:0<0/b F1:0v0 S1:0>2/c R1:0<2/c B1:0v0 S1:0>0/b U1v1",
        "R2:0<0/a R2:0<0/b R2:0<1/c F2:0v0 B2:0v0 S2:0>0/b S2:0>1/c U2v1",
    ]


def test_a_long_skip_is_received_early_where_its_one_slot_would_be_full() -> None:
    plan = _plan(4, (*_chain(4), Edge("skip", 0, (3,), 4, 4)), 8)
    schedule = make_schedule("one_f_one_b")
    lists = schedule.actions(plan)
    verify(plan, lists, schedule)
    last = [str(action) for action in lists[PlanWorker(3, 0)]]
    assert last.index("R3:1<0/skip") < last.index("F3:0v0"), "stage 0 sends piece 1 before stage 3 begins piece 0"

    def just_in_time(row: list[Action]) -> list[Action]:
        found: list[Action] = []
        for action in (action for action in row if action.kind is not ActionKind.RECEIVE):
            needed = [
                other
                for other in row
                if other.kind is ActionKind.RECEIVE
                and other.micro_batch == action.micro_batch
                and action.kind is (ActionKind.BACKWARD if other.is_gradient else ActionKind.FORWARD)
            ]
            found += [*needed, action]
        return found

    naive = {worker: just_in_time(row) for worker, row in lists.items()}
    assert standstill_of(plan, naive) is not None, "that is why"


def test_recomputation_may_begin_before_the_gradient_comes() -> None:
    stages = (Stage(0, ("op0",), (0,), recompute=True), Stage(1, ("op1",), (1,)))
    lists = make_schedule("zb_h1").actions(Plan(stages, _chain(2), (), "zb_h1", 1))
    assert " ".join(map(str, lists[PlanWorker(0, 0)])) == "F0:0v0 S0:0>1/op0 C0:0v0 R0:0<1/op0 I0:0v0 W0:0v0 U0v1"


def test_an_order_that_waits_in_a_circle_is_named() -> None:
    plan = _plan(2, _chain(2), 1)
    orders = {
        PlanWorker(0, 0): iter([Action(ActionKind.BACKWARD, 0, 0, 0, 0), Action(ActionKind.FORWARD, 0, 0, 0, 0)]),
        PlanWorker(1, 0): iter([Action(ActionKind.FORWARD, 1, 0, 0, 0), Action(ActionKind.BACKWARD, 1, 0, 0, 0)]),
    }
    with pytest.raises(ScheduleInvalid, match=r"worker 0\.0 at B0:0v0, worker 1\.0 at F1:0v0") as caught:
        list(with_transfers(plan, orders))
    assert (caught.value.action, caught.value.worker) == ("B0:0v0", "0.0")


def test_an_endless_order_forgets_what_nobody_needs_any_more() -> None:
    schedule = make_schedule("pipedream")
    plan = _plan(3, (*_chain(3), Edge("skip", 0, (2,), 4, 4), Edge("mask", 0, (2,), 1, 0)), 1)
    play = EndlessPlay(plan, schedule._orders(plan), [1, 1, 1])
    sizes: list[int] = []
    for _ in range(6):
        play.admit(50)
        it = play._play
        sizes.append(sum(map(len, (it._next, it._waiting, it._met, it._ready, it._done, it._slots))))
    assert max(sizes) < 20, f"it grows: {sizes}"


def test_ties_that_share_a_stage_are_reduced_together_others_apart() -> None:
    plan = _plan(5, _chain(5), 1, (Tie("a", (0, 2)), Tie("b", (2, 4)), Tie("c", (1, 3))))
    assert members(plan, PlanWorker(0, 0), ReduceGroup.TIED) == (PlanWorker(0, 0), PlanWorker(2, 0), PlanWorker(4, 0))
    assert members(plan, PlanWorker(3, 0), ReduceGroup.TIED) == (PlanWorker(1, 0), PlanWorker(3, 0))
    assert [str(action) for action in update(plan, PlanWorker(2, 0), [7] * 5, norm=True)] == (
        ["A2v7/tied", "A2v7/norm", "U2v7"]
    )
    verify(plan, make_schedule("pipedream").actions(plan), "pipedream")


def test_a_worker_with_several_tied_stages_reduces_once() -> None:
    stages = tuple(Stage(stage, (f"op{stage}",), (devices,)) for stage, devices in enumerate((0, 1, 1, 0)))
    plan = Plan(stages, _chain(4), (Tie("embedding", (0, 3)),), "zb_v", 4)
    schedule = make_schedule("zb_v")
    lists = schedule.actions(plan)
    verify(plan, lists, schedule)
    assert [str(action) for action in lists[PlanWorker(0, 0)][-3:]] == ["A0v1/tied", "U0v1", "U3v1"]
    assert [str(action) for action in lists[PlanWorker(1, 0)][-2:]] == ["U1v1", "U2v1"]
