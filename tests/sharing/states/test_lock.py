"""Locks: each rule by itself, and any order of calls, deaths and ends of time against an owner and a list."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.lock import LockClaim, LockState
from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter
from tests.sharing.states.desk import Desk, party

A, A2, B, C = party("a", 1), party("a", 2), party("b", 1), party("c", 1)


def test_a_lock_passes_from_one_to_the_next_in_line() -> None:
    state = LockState()
    desk = Desk(state)
    assert desk.ask(state, "acquire", A) is True
    waiting = [desk.call(state, "acquire", who) for who in (B, A2, C)]
    for waiter, owner in zip(waiting, (A, B, A2), strict=True):
        assert waiter in desk.waiting
        desk.ask(state, "release", owner)
        assert desk.end(waiter) is True


def test_acquire_returns_false_when_the_time_is_over() -> None:
    state = LockState()
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    waiting = desk.call(state, "acquire", B)
    desk.time_over(waiting)
    assert desk.end(waiting) is False
    desk.ask(state, "release", A)
    assert desk.ask(state, "locked", A) is False


def test_a_plain_lock_makes_its_owner_wait_and_may_be_released_by_anybody() -> None:
    state = LockState()
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    again = desk.call(state, "acquire", A)
    assert again in desk.waiting
    desk.ask(state, "release", B)
    assert desk.end(again) is True


def test_a_plain_lock_that_nobody_owns_cannot_be_released() -> None:
    state = LockState()
    with pytest.raises(ValueError, match="semaphore or lock released too many times"):
        Desk(state).ask(state, "release", A)


def test_a_recursive_lock_counts() -> None:
    state = LockState(recursive=True)
    desk = Desk(state)
    for _ in range(3):
        assert desk.ask(state, "acquire", A) is True
    waiting = desk.call(state, "acquire", B)
    for _ in range(3):
        assert waiting in desk.waiting
        desk.ask(state, "release", A)
    assert desk.end(waiting) is True


@pytest.mark.parametrize("other", [A2, B])
def test_a_recursive_lock_is_released_by_the_thread_that_owns_it_only(other: Party) -> None:
    state = LockState(recursive=True)
    desk = Desk(state)
    message = "attempt to release recursive lock not owned by thread"
    with pytest.raises(AssertionError, match=message):
        desk.ask(state, "release", other)
    desk.ask(state, "acquire", A)
    with pytest.raises(AssertionError, match=message):
        desk.ask(state, "release", other)
    assert desk.ask(state, "locked", B) is True


def test_a_lock_tells_who_owns_it() -> None:
    state = LockState(recursive=True)
    desk = Desk(state)
    assert desk.ask(state, "holder", A) == ""
    assert desk.ask(state, "standing", A) == ("nobody", 0)
    desk.ask(state, "acquire", A)
    desk.ask(state, "acquire", A)
    assert desk.ask(state, "holder", B) == "Process-a"
    assert desk.ask(state, "standing", A) == ("me", 2)
    assert desk.ask(state, "standing", A2) == ("other thread", 2)
    assert desk.ask(state, "standing", B) == ("other process", 2)


@pytest.mark.parametrize("recursive", [False, True])
def test_the_lock_of_a_dead_process_is_free_and_the_next_owner_hears_of_it_once(recursive: bool) -> None:
    state = LockState(recursive)
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    desk.call(state, "acquire", A2)
    waiting = desk.call(state, "acquire", B)
    desk.die("a")
    assert desk.end(waiting) == "held by Process-a, which is gone"
    assert state.abandoned == ["held by Process-a, which is gone"]
    desk.ask(state, "release", B)
    assert desk.ask(state, "acquire", C) is True


def test_the_record_waits_for_whoever_comes_next() -> None:
    state = LockState()
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    desk.die("a")
    assert desk.ask(state, "locked", B) is False
    assert desk.ask(state, "acquire", B) == "held by Process-a, which is gone"


def test_the_death_of_one_that_only_waits_leaves_no_record() -> None:
    state = LockState()
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    desk.call(state, "acquire", B)
    desk.die("b")
    desk.ask(state, "release", A)
    assert desk.ask(state, "acquire", C) is True
    assert state.abandoned == []


def test_a_lock_whose_new_owner_never_hears_of_it_goes_to_the_next() -> None:
    state = LockState()
    desk = Desk(state)
    unheard, waiting = desk.call(state, "acquire", A), desk.call(state, "acquire", B)
    desk.never_taken(unheard)
    assert desk.end(waiting) is True


def test_an_acquire_that_its_caller_never_hears_of_does_not_count() -> None:
    state = LockState(recursive=True)
    desk = Desk(state)
    desk.ask(state, "acquire", A)
    desk.never_taken(desk.call(state, "acquire", A))
    assert desk.ask(state, "standing", A) == ("me", 1)


def test_giving_up_an_acquire_whose_caller_has_its_lock_changes_nothing() -> None:
    state = LockState()
    desk = Desk(state)
    acquired = desk.call(state, "acquire", A)
    desk.taken(acquired)
    assert state.give_up(acquired, timed_out=False) == []
    assert desk.ask(state, "standing", A) == ("me", 1)


def test_what_is_not_heard_of_cannot_release_the_lock_of_another() -> None:
    state = LockState()
    desk = Desk(state)
    unheard = desk.call(state, "acquire", A)
    desk.ask(state, "release", B)
    assert desk.ask(state, "acquire", C) is True
    desk.never_taken(unheard)
    assert desk.ask(state, "standing", C) == ("me", 1)


class AnyOrder(RuleBasedStateMachine):
    """Three processes of two threads, each of which has at most one call under way."""

    @initialize(recursive=st.booleans())
    def begin(self, recursive: bool) -> None:
        self.recursive = recursive
        self.state = LockState(recursive)
        self.desk = Desk(self.state, on_outcome=self.heard)
        self.owner: Party | None = None
        self.depth = 0
        self.line: dict[Waiter, None] = {}
        self.deaths = self.told = 0
        self.births = 3
        self.processes = ["1", "2", "3"]

    def heard(self, outcome: CallOutcome) -> None:
        if outcome.waiter not in self.line or outcome.value is False:
            return
        who = outcome.waiter.party
        if self.recursive and self.owner == who:
            self.depth += 1
        else:
            assert self.owner is None, "two owners"
            assert outcome.waiter is next(iter(self.line)), "not the first of those that wait"
            self.owner, self.depth = who, 1
        if isinstance(outcome.value, str):
            self.told += outcome.value.count("held by")
        del self.line[outcome.waiter]

    def idle(self) -> list[Party]:
        blocked = {waiter.party for waiter in (*self.line, *self.desk.lent)}
        everybody = [party(process, thread) for process in self.processes for thread in (1, 2)]
        return [who for who in everybody if who not in blocked]

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        waiter = Waiter(data.draw(st.sampled_from(self.idle())))
        self.line[waiter] = None
        self.desk.waiting[waiter] = self.state
        self.desk._hear(self.state.acquire(waiter))

    @precondition(lambda self: self.owner in self.idle())
    @rule()
    def release(self) -> None:
        owner = self.owner
        assert owner is not None
        self.depth -= 1
        if self.depth == 0:
            self.owner = None
        self.desk.ask(self.state, "release", owner)

    @precondition(lambda self: self.desk.lent)
    @rule(arrives=st.booleans())
    def end_of_loan(self, arrives: bool) -> None:
        (waiter,) = self.desk.lent
        if arrives:
            self.desk.taken(waiter)
            return
        assert self.owner == waiter.party
        self.depth -= 1
        if self.depth == 0:
            self.owner = None
        self.desk.never_taken(waiter)

    @precondition(lambda self: self.line)
    @rule(data=st.data(), timed_out=st.booleans())
    def end_of_patience(self, data: st.DataObject, timed_out: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.line)))
        del self.line[waiter]
        if timed_out:
            self.desk.time_over(waiter)
            assert self.desk.end(waiter) is False
        else:
            self.desk.cancel(waiter)

    @rule(of=st.integers(0, 2))
    def death(self, of: int) -> None:
        self.births += 1
        gone, self.processes[of] = self.processes[of], str(self.births)
        self.line = {waiter: None for waiter in self.line if waiter.party.process != gone}
        if self.owner is not None and self.owner.process == gone:
            self.owner, self.depth = None, 0
            self.deaths += 1
        self.desk.die(gone)

    @invariant()
    def a_free_lock_has_nobody_in_line_and_owners_are_as_they_should(self) -> None:
        assert self.owner is not None or not self.line
        watching = self.owner or party("watching")
        standing = ("nobody", 0) if self.owner is None else ("me", self.depth)
        assert self.desk.ask(self.state, "standing", watching) == standing
        assert set(self.desk.waiting) == set(self.line)

    @invariant()
    def each_death_of_an_owner_is_told_once(self) -> None:
        assert len(self.state.abandoned) == self.deaths
        assert self.told == self.deaths or (self.owner is None and self.told < self.deaths)


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=30, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.soak
class TestMoreOrders(AnyOrder.TestCase):
    settings = settings(deadline=None, max_examples=1_000, stateful_step_count=40)


def test_a_plain_lock_may_be_released_once_for_an_owner_that_died_with_it() -> None:
    lock = LockState(False)
    first, second = Waiter(Party("a", "A")), Waiter(Party("b", "B"))
    lock.acquire(first)
    lock.taken(first)
    lock.party_gone("a", "A")
    assert lock.release(second) == [CallOutcome(second)]
    (refused,) = lock.release(second)
    assert isinstance(refused.error, ValueError)
    assert lock.abandoned == ["held by A, which is gone"]


def test_a_condition_knows_how_often_a_lock_is_owned_and_whether_a_claim_was_granted() -> None:
    lock, one, two = LockState(recursive=True), party("1"), party("2")
    assert lock.depth == 0
    first, second = LockClaim(Waiter(one), depth=3), LockClaim(Waiter(two))
    assert not first.granted and not first.lent
    lock.claim(first)
    lock.claim(second)
    assert (first.granted, second.granted, lock.depth) == (True, False, 3)
    lock.free()
    assert (second.granted, lock.depth) == (True, 1)
    lock.free()
    assert lock.depth == 0
