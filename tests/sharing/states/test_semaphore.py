"""Semaphores: each rule by itself, and any order of calls, deaths and ends of time against a plain count."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.semaphore import SemaphoreState
from ropewalk.sharing.states.waiting import CallOutcome, Waiter
from tests.sharing.states.desk import Desk, party

A, B, C = party("a"), party("b"), party("c")


def test_a_semaphore_lets_as_many_in_as_its_value_says() -> None:
    state = SemaphoreState(2)
    desk = Desk(state)
    assert desk.ask(state, "acquire", A) is True
    assert desk.ask(state, "acquire", A) is True
    assert desk.ask(state, "get_value", B) == 0
    second, third = desk.call(state, "acquire", B), desk.call(state, "acquire", C)
    desk.ask(state, "release", C)
    assert desk.end(second) is True
    assert third in desk.waiting


def test_acquire_returns_false_when_the_time_is_over() -> None:
    state = SemaphoreState(0)
    desk = Desk(state)
    waiting = desk.call(state, "acquire", A)
    desk.time_over(waiting)
    assert desk.end(waiting) is False


def test_a_semaphore_without_a_bound_goes_up_for_ever() -> None:
    state = SemaphoreState(0)
    desk = Desk(state)
    desk.ask(state, "release", A, 7)
    assert desk.ask(state, "get_value", B) == 7
    with pytest.raises(ValueError, match="n must be one or more"):
        desk.ask(state, "release", A, 0)


def test_a_bounded_semaphore_is_not_released_too_often() -> None:
    state = SemaphoreState(1, bound=1)
    desk = Desk(state)
    with pytest.raises(ValueError, match="semaphore or lock released too many times"):
        desk.ask(state, "release", A)
    desk.ask(state, "acquire", A)
    desk.ask(state, "release", B)
    assert desk.ask(state, "get_value", B) == 1


def test_what_a_dead_process_acquired_stays_acquired() -> None:
    state = SemaphoreState(1)
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    desk.die("a")
    assert desk.ask(state, "get_value", B) == 0


@pytest.mark.parametrize("end", ["interrupted", "dead"])
def test_a_permit_that_never_arrived_is_given_to_the_next(end: str) -> None:
    state = SemaphoreState(1)
    desk = Desk(state)
    unheard, waiting = desk.call(state, "acquire", A), desk.call(state, "acquire", B)
    if end == "interrupted":
        desk.never_taken(unheard)
    else:
        desk.die("a")
    assert desk.end(waiting) is True
    desk.taken(waiting)
    assert state.resting == (0, 0, 0), "nothing of the lost permit is kept"
    desk.die("a")  # and no second one comes back
    assert desk.ask(state, "get_value", B) == 0


def test_values_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must be >= 0, not -1"):
        SemaphoreState(-1)
    with pytest.raises(ValueError, match="bound 1, not 2"):
        SemaphoreState(2, bound=1)


class AnyOrder(RuleBasedStateMachine):
    @initialize(value=st.integers(0, 2))
    def begin(self, value: int) -> None:
        self.state = SemaphoreState(value)
        self.desk = Desk(self.state, on_outcome=self.heard)
        self.value = value
        self.acquirers: dict[Waiter, None] = {}
        self.births = 3
        self.processes = ["1", "2", "3"]

    def heard(self, outcome: CallOutcome) -> None:
        if outcome.waiter in self.acquirers:
            assert outcome.waiter is next(iter(self.acquirers)), "not the first of those that wait"
            del self.acquirers[outcome.waiter]
            self.value -= 1
            assert self.value >= 0

    @rule(of=st.integers(0, 2))
    def acquire(self, of: int) -> None:
        waiter = Waiter(party(self.processes[of]))
        self.acquirers[waiter] = None
        self.desk.waiting[waiter] = self.state
        self.desk._hear(self.state.acquire(waiter))

    @precondition(lambda self: self.desk.lent)
    @rule(data=st.data(), arrives=st.booleans())
    def end_of_loan(self, data: st.DataObject, arrives: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.desk.lent)))
        if arrives:
            self.desk.taken(waiter)
        else:
            self.value += 1
            self.desk.never_taken(waiter)

    @rule(of=st.integers(0, 2), n=st.integers(1, 3))
    def release(self, of: int, n: int) -> None:
        self.value += n
        self.desk.ask(self.state, "release", party(self.processes[of]), n)

    @precondition(lambda self: self.acquirers)
    @rule(data=st.data(), timed_out=st.booleans())
    def end_of_patience(self, data: st.DataObject, timed_out: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.acquirers)))
        del self.acquirers[waiter]
        if timed_out:
            self.desk.time_over(waiter)
            assert self.desk.end(waiter) is False
        else:
            self.desk.cancel(waiter)

    @rule(of=st.integers(0, 2))
    def death(self, of: int) -> None:
        self.births += 1
        gone, self.processes[of] = self.processes[of], str(self.births)
        self.acquirers = {waiter: None for waiter in self.acquirers if waiter.party.process != gone}
        self.value += sum(waiter.party.process == gone for waiter in self.desk.lent)
        self.desk.die(gone)

    @invariant()
    def permits_are_neither_lost_nor_made(self) -> None:
        assert self.desk.ask(self.state, "get_value", A) == self.value
        assert not (self.value and self.acquirers)
        assert set(self.desk.waiting) == set(self.acquirers)


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=50, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase


def test_a_semaphore_without_a_value_lets_one_in() -> None:
    state = SemaphoreState()
    desk = Desk(state)
    assert desk.ask(state, "get_value", A) == 1
