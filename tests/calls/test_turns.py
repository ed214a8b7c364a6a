"""Whose turn it is: by laws over any order of events, and the sentences of a refusal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.calls.messages import Origin
from ropewalk.calls.turns import FREE, MAX_CHAIN, CallLane
from ropewalk.errors import CallCycle


@dataclass(eq=False)
class Call:
    key: int
    chain: tuple[Origin, ...] = ()
    label: str = "a.f"


def origin(call: Call, depth: int = 1) -> Origin:
    return Origin(call.key, call.label, depth)


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["arrive", "finish", "next", "cancel"]), st.integers(0))))
def test_never_more_than_the_limit_run_and_nobody_is_lost_or_overtaken(
    limit: int, events: list[tuple[str, int]]
) -> None:
    lane: CallLane[Call] = CallLane(limit)
    running: list[Call] = []
    waiting: deque[Call] = deque()
    begun: list[int] = []
    num_cancelled = 0
    for number, (event, choice) in enumerate(events):
        if event == "arrive":
            call = Call(number)
            if lane.arrive(call):
                assert not waiting, "it has overtaken those that wait"
                running.append(call)
                begun.append(number)
            else:
                waiting.append(call)
        elif event == "finish" and running:
            call = running.pop(choice % len(running))
            assert lane.finish(call) == bool(waiting)
        elif event == "next" and (call := lane.begin_next()):
            assert call is waiting.popleft(), "not the one that waited longest"
            running.append(call)
            begun.append(call.key)
        elif event == "cancel" and waiting:
            call = waiting[choice % len(waiting)]
            assert lane.withdraw(call) and not lane.withdraw(call)
            waiting.remove(call)
            num_cancelled += 1
        assert len(running) <= limit
        assert set(lane.running.values()) == set(running) and list(lane.waiting) == list(waiting)
    assert begun == sorted(begun)
    while waiting or running:
        while call := lane.begin_next():
            assert call is waiting.popleft()
            running.append(call)
        lane.finish(running.pop())


def test_a_call_that_arrives_between_two_turns_waits_for_its_own() -> None:
    lane: CallLane[Call] = CallLane()
    first, second, third = Call(1), Call(2), Call(3)
    assert [lane.arrive(first), lane.arrive(second), lane.finish(first)] == [True, False, True]
    assert [lane.arrive(third), lane.begin_alone(third)] == [False, False]
    assert lane.begin_next() is second


@given(st.sampled_from([1, 2, FREE]), st.integers(0, 3), st.integers(0, 2))
def test_the_fast_path_begins_a_call_only_where_the_long_one_would(limit: int, num_before: int, num_over: int) -> None:
    def lane_in_use() -> CallLane[Call]:
        lane: CallLane[Call] = CallLane(limit)
        begun = [call for call in map(Call, range(num_before)) if lane.arrive(call)]
        for call in begun[:num_over]:
            lane.finish(call)
        return lane

    fast, long = lane_in_use(), lane_in_use()
    call = Call(100)
    was_idle = not fast.running and not fast.waiting
    has_begun = fast.begin_alone(call)
    assert has_begun == (was_idle or limit == FREE), "a lane of its own, and one without a limit, are always free"
    assert (call in fast.running.values()) == has_begun
    assert long.arrive(call) or not has_begun


def test_a_call_of_the_chain_that_has_the_turn_is_admitted_before_all_that_wait() -> None:
    lane: CallLane[Call] = CallLane()
    outer, other = Call(1), Call(2)
    assert lane.arrive(outer) and not lane.arrive(other)
    inner = Call(3, (origin(outer), Origin(9, "b.g", 2)))
    assert lane.arrive(inner)
    assert not lane.finish(inner), "the outer one still has the turn"
    assert lane.finish(outer) and lane.begin_next() is other


def test_a_chain_that_does_not_end_is_refused_and_named() -> None:
    lane: CallLane[Call] = CallLane()
    outer = Call(1)
    lane.arrive(outer)
    labels = ("a.f", "b.g") * (MAX_CHAIN // 2)
    chain = tuple(Origin(number, label, number) for number, label in enumerate(labels, 1))
    assert lane.arrive(Call(900, chain[:-1], "b.g"))
    with pytest.raises(CallCycle, match=r"goes round: a\.f → b\.g → a\.f\.") as caught:
        lane.arrive(Call(901, chain, "a.f"))
    assert caught.value.chain == (*labels, "a.f")


def test_a_long_chain_that_has_not_yet_come_round_is_shown_from_its_beginning() -> None:
    lane: CallLane[Call] = CallLane()
    lane.arrive(Call(1))
    chain = tuple(Origin(number, f"a.f{number}", number) for number in range(1, MAX_CHAIN + 1))
    with pytest.raises(CallCycle, match=r"goes round: a\.f1 → a\.f2 → .* → a\.f64 → a\.f\."):
        lane.arrive(Call(900, chain))


def test_many_short_chains_of_one_batch_are_no_long_chain() -> None:
    # A batch joins the chains of all its calls. 64 callers, each one call deep, were once taken for a circle.
    lane: CallLane[Call] = CallLane()
    lane.arrive(Call(1))
    callers = tuple(Origin(100 + number, f"actor.{number}", 1) for number in range(200))
    assert not lane.arrive(Call(2, (*callers, Origin(99, "policy.act", 2)), "learner.step"))
