"""Events: a flag and those that wait for it."""

from __future__ import annotations

from ropewalk.sharing.states.event import EventState
from tests.sharing.states.desk import Desk, party

A, B, C = party("a"), party("b"), party("c")


def test_setting_the_flag_ends_all_waits_also_if_it_is_cleared_right_after() -> None:
    state = EventState()
    desk = Desk(state)
    waiting = [desk.call(state, "wait", who) for who in (A, B)]
    desk.ask(state, "set", C)
    desk.ask(state, "clear", C)
    assert [desk.end(waiter) for waiter in waiting] == [True, True]
    assert desk.ask(state, "is_set", A) is False
    late = desk.call(state, "wait", A)
    assert late in desk.waiting
    desk.ask(state, "set", C)  # which says nothing again to those that were told
    assert desk.end(late) is True


def test_a_wait_for_a_flag_that_is_set_ends_at_once() -> None:
    state = EventState()
    desk = Desk(state)
    desk.ask(state, "set", C)
    desk.ask(state, "set", C)
    assert desk.ask(state, "is_set", A) is True
    assert desk.ask(state, "wait", A) is True


def test_a_wait_ends_with_false_when_its_time_is_over() -> None:
    state = EventState()
    desk = Desk(state)
    waiting = desk.call(state, "wait", A)
    desk.time_over(waiting)
    assert desk.end(waiting) is False


def test_nothing_is_said_to_those_that_wait_no_more() -> None:
    state = EventState()
    desk = Desk(state)
    desk.call(state, "wait", A)
    desk.cancel(desk.call(state, "wait", B))
    desk.die("a")
    desk.ask(state, "set", C)
    assert not desk.waiting
