"""Looks at calls that wait, while everything moves: what is ended was stuck for ever, and nothing stays so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.program.wait_watch import ANSWER_S, BreakCircle, QueryWaits, WaitWatch
from tests.program.test_wait_graph import crosswise, moved
from tests.program.waiting_world import World


def labels_of(instructions: list[QueryWaits | BreakCircle]) -> list[object]:
    return [
        said.address if isinstance(said, QueryWaits) else said.circle.last_comer.call.label for said in instructions
    ]


def test_who_is_waited_for_is_asked_and_a_circle_is_broken() -> None:
    world, watch = crosswise(), WaitWatch()
    (ask,) = watch.held_up("a", 0.0)
    assert watch.held_up("b", 0.1) == [], "one look at a time"
    assert labels_of(watch.answered("a", ask.number, world.report("a"))) == ["b"]
    assert watch.answered("a", ask.number, world.report("a")) == [], "it has answered"
    assert labels_of(watch.answered("b", ask.number, world.report("b"))) == ["a.m4"]
    assert not watch.is_looking and watch.answered("b", ask.number, world.report("b")) == []


def test_while_somebody_works_nothing_is_broken() -> None:
    world, watch = crosswise(), WaitWatch()
    assert world.end(4, "a")
    (ask,) = watch.held_up("b", 0.0)
    assert watch.answered("b", ask.number, world.report("b")) == [] and not watch.is_looking


def test_a_process_that_is_gone_or_silent_does_not_hold_up_the_next_look() -> None:
    world, watch = crosswise(), WaitWatch()
    (ask,) = watch.held_up("a", 0.0)
    watch.answered("a", ask.number, world.report("a"))
    watch.gone("b")
    assert not watch.is_looking and watch.held_up("a", 0.1) != []
    assert watch.held_up("b", 0.1 + ANSWER_S / 2) == []
    assert labels_of(list(watch.held_up("b", 0.1 + ANSWER_S))) == ["b"]


@given(limits=st.lists(st.integers(1, 2), min_size=2, max_size=4), data=st.data())
def test_whatever_happens_meanwhile_only_what_never_goes_on_is_ended_and_all_of_that_is(
    limits: list[int], data: st.DataObject
) -> None:
    world = World(**{"abcd"[index]: limit for index, limit in enumerate(limits)})
    watch, asked = WaitWatch(), list[QueryWaits]()

    def obey(instructions: list[QueryWaits | BreakCircle]) -> None:
        for said in instructions:
            if isinstance(said, QueryWaits):
                asked.append(said)
            else:
                stuck = world.never_go_on()
                assert {each.call.key for each in said.circle.calls} <= stuck, "it would have gone on"
                last = said.circle.last_comer
                assert world.end(last.call.key, last.address)

    def answer(choice: int) -> None:
        ask = asked.pop(choice % len(asked))
        obey(watch.answered(ask.address, ask.number, world.report(ask.address)))

    for _ in range(data.draw(st.integers(0, 60))):
        kind, choice = data.draw(st.sampled_from(["move", "move", "say", "answer"])), data.draw(st.integers(0, 99))
        if kind == "answer" and asked:
            answer(choice)
        elif kind == "say":
            obey(list(watch.held_up(sorted(world.services)[choice % len(world.services)], 0.0)))
        else:
            moved(world, data.draw(st.sampled_from(["come", "call", "call", "return"])), choice)
    for _ in range(200):  # nothing new happens: all that can return does
        while asked:
            answer(0)
        if world.active:
            world.finish(world.active[0])
        held_up = [name for name in world.services if any(lane.is_held_up for lane in world.report(name))]
        for name in held_up:
            obey(list(watch.held_up(name, 0.0)))
            while asked:
                answer(0)
    assert not any(service.running for service in world.services.values())
