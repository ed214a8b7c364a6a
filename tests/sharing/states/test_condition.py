"""Conditions: each rule by itself, and any order of calls, deaths and ends of time against lists of who sleeps."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.condition import ConditionState
from ropewalk.sharing.states.lock import LockState
from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter, Waiters
from tests.sharing.states.desk import Desk, party

A, B, C, D = (party(name, 1) for name in "abcd")


class Room:
    """A condition with its lock, at a desk."""

    def __init__(self, recursive: bool = False, lock_hears_first: bool = False) -> None:
        self.lock = LockState(recursive)
        self.condition = ConditionState(self.lock)
        states = (self.lock, self.condition) if lock_hears_first else (self.condition, self.lock)
        self.desk = Desk(*states)

    def acquire(self, who: Party) -> Waiter:
        waiter = self.desk.call(self.lock, "acquire", who)
        if waiter in self.desk.lent:
            self.desk.taken(waiter)
        return waiter

    def release(self, who: Party) -> None:
        self.desk.ask(self.lock, "release", who)

    def sleep(self, who: Party) -> Waiter:
        """Acquire and wait."""
        self.desk.ask(self.lock, "acquire", who)
        return self.desk.call(self.condition, "wait", who)

    def notify(self, who: Party, *n: int) -> None:
        self.desk.ask(self.condition, "notify", who, *n)

    def owner(self) -> str:
        return self.desk.ask(self.lock, "holder", party("watching"))

    def num_waiters(self) -> int:
        return self.desk.ask(self.condition, "num_waiters", party("watching"))


def test_a_wait_releases_the_lock_and_has_it_again_when_it_ends() -> None:
    room = Room()
    sleeping = room.sleep(A)
    assert room.owner() == ""
    room.acquire(B)
    room.notify(B)
    assert sleeping in room.desk.waiting
    room.release(B)
    assert room.desk.end(sleeping) is True
    assert room.owner() == "Process-a"


def test_notify_wakes_those_that_sleep_longest() -> None:
    room = Room()
    first, second, third = (room.sleep(who) for who in (A, B, C))
    room.acquire(D)
    room.notify(D, 2)
    assert room.num_waiters() == 1
    room.release(D)
    assert room.desk.end(first) is True
    assert second in room.desk.waiting
    room.release(A)
    assert room.desk.end(second) is True
    room.release(B)
    assert third in room.desk.waiting


def test_notify_all_wakes_everybody() -> None:
    room = Room()
    sleeping = [room.sleep(who) for who in (A, B, C)]
    room.acquire(D)
    room.desk.ask(room.condition, "notify_all", D)
    for who in (D, A, B):
        room.release(who)
    assert [room.desk.end(waiter) for waiter in sleeping] == [True, True, True]


def test_a_notification_that_nobody_waits_for_is_forgotten() -> None:
    room = Room()
    room.acquire(A)
    room.notify(A, 5)
    room.release(A)
    assert room.sleep(B) in room.desk.waiting


@pytest.mark.parametrize("recursive", [False, True])
def test_only_the_owner_of_the_lock_waits_and_notifies(recursive: bool) -> None:
    room = Room(recursive)
    with pytest.raises(AssertionError, match="lock is not owned"):
        room.notify(A)
    room.acquire(B)
    with pytest.raises(AssertionError, match=r"must acquire\(\) condition before using wait\(\)"):
        room.desk.ask(room.condition, "wait", A)
    with pytest.raises(AssertionError, match="lock is not owned"):
        room.desk.ask(room.condition, "notify_all", A)


def test_a_recursive_lock_is_released_and_had_again_as_often_as_it_was_owned() -> None:
    room = Room(recursive=True)
    room.acquire(A)
    room.acquire(A)
    sleeping = room.sleep(A)
    room.acquire(B)
    room.notify(B)
    room.release(B)
    assert room.desk.end(sleeping) is True
    assert room.desk.ask(room.lock, "standing", A) == ("me", 3)


def test_a_wait_whose_time_is_over_ends_with_false_when_it_has_its_lock() -> None:
    room = Room()
    sleeping = room.sleep(A)
    room.acquire(B)
    room.desk.time_over(sleeping)
    assert sleeping in room.desk.waiting
    room.notify(B)
    room.release(B)
    assert room.desk.end(sleeping) is False
    assert room.owner() == "Process-a"


def test_a_wait_that_was_notified_in_time_ends_with_true() -> None:
    room = Room()
    sleeping = room.sleep(A)
    room.acquire(B)
    room.notify(B)
    room.desk.time_over(sleeping)
    room.release(B)
    assert room.desk.end(sleeping) is True


def test_a_dead_sleeper_takes_no_notification_away() -> None:
    room = Room()
    room.sleep(A)
    sleeping = room.sleep(B)
    room.desk.die("a")
    room.acquire(C)
    room.notify(C)
    room.release(C)
    assert room.desk.end(sleeping) is True


@pytest.mark.parametrize("lock_hears_first", [False, True])
def test_one_that_dies_on_its_way_to_the_lock_hands_its_notification_on(lock_hears_first: bool) -> None:
    room = Room(lock_hears_first=lock_hears_first)
    room.sleep(A)
    sleeping = room.sleep(B)
    room.acquire(C)
    room.notify(C)
    room.desk.die("a")
    room.release(C)
    assert room.desk.end(sleeping) is True


@pytest.mark.parametrize("lock_hears_first", [False, True])
def test_one_that_timed_out_has_no_notification_to_hand_on(lock_hears_first: bool) -> None:
    room = Room(lock_hears_first=lock_hears_first)
    timed_out, sleeping = room.sleep(A), room.sleep(B)
    room.acquire(C)
    room.desk.time_over(timed_out)
    room.desk.die("a")
    room.release(C)
    assert sleeping in room.desk.waiting
    assert room.owner() == ""


@pytest.mark.parametrize("lock_hears_first", [False, True])
def test_a_notifier_that_dies_with_the_lock_has_notified(lock_hears_first: bool) -> None:
    room = Room(lock_hears_first=lock_hears_first)
    sleeping = room.sleep(A)
    room.acquire(B)
    room.notify(B)
    room.desk.die("b")
    assert room.desk.end(sleeping) == "held by Process-b, which is gone"


def test_a_wait_that_is_cancelled_can_have_its_lock_again_as_it_was() -> None:
    room = Room(recursive=True)
    room.acquire(A)
    sleeping = room.sleep(A)
    room.acquire(B)
    room.desk.cancel(sleeping)
    resuming = room.desk.call(room.condition, "resume", A)
    assert resuming in room.desk.waiting
    room.release(B)
    assert room.desk.end(resuming) is True
    assert room.desk.ask(room.lock, "standing", A) == ("me", 2)


def test_a_wait_that_ended_while_it_was_cancelled_has_its_lock_already() -> None:
    room = Room()
    room.sleep(A)
    room.acquire(B)
    room.notify(B)
    room.release(B)
    assert room.desk.ask(room.condition, "resume", A) is True
    assert room.desk.ask(room.lock, "standing", A) == ("me", 1)


def test_one_that_is_cancelled_on_its_way_to_the_lock_hands_its_notification_on() -> None:
    room = Room()
    first, second = room.sleep(A), room.sleep(B)
    room.acquire(C)
    room.notify(C)
    room.desk.cancel(first)
    resuming = room.desk.call(room.condition, "resume", A)
    room.release(C)
    assert room.desk.end(second) is True
    room.desk.cancel(resuming)  # Its claim of the lock comes of no notification.
    room.release(B)
    assert room.owner() == ""


def test_one_that_is_cancelled_on_its_way_to_a_recursive_lock_has_it_again_as_often() -> None:
    room = Room(recursive=True)
    room.acquire(A)
    sleeping = room.sleep(A)
    room.acquire(B)
    room.notify(B)
    room.desk.cancel(sleeping)
    room.release(B)
    assert room.desk.ask(room.condition, "resume", A) is True
    assert room.desk.ask(room.lock, "standing", A) == ("me", 2)


def test_a_cancelled_wait_can_have_its_lock_again_after_the_state_was_restored() -> None:
    room, restored = Room(recursive=True), Room(recursive=True)
    room.acquire(A)
    room.desk.cancel(room.sleep(A))
    restored.condition.restore(room.condition.plain(), cast("Waiters", None))  # Nobody sleeps.
    assert restored.condition.resting is None
    assert restored.desk.ask(restored.condition, "resume", A) is True
    assert restored.desk.ask(restored.lock, "standing", A) == ("me", 2)


def test_giving_up_a_wait_that_has_ended_wakes_nobody() -> None:
    room = Room()
    ended, sleeping = room.sleep(A), room.sleep(B)
    room.acquire(C)
    room.notify(C)
    room.release(C)
    assert room.condition.give_up(ended, timed_out=False) == []
    assert sleeping in room.desk.waiting
    assert room.num_waiters() == 1


def test_a_condition_is_at_rest_if_nobody_sleeps_claims_its_lock_or_was_interrupted() -> None:
    room = Room()
    at_rest = (0, 0, 0)
    assert room.condition.resting == at_rest
    sleeping = room.sleep(A)
    assert room.condition.resting is None
    room.acquire(B)
    room.notify(B)
    assert room.condition.resting is None, "it is on its way to the lock"
    room.release(B)
    assert room.desk.end(sleeping) is True
    assert room.condition.resting == at_rest
    room.release(A)
    room.desk.cancel(room.sleep(A))
    assert room.condition.resting is None, "it has to have its lock again as it was"
    room.desk.ask(room.condition, "resume", A)
    assert room.condition.resting == at_rest


def test_nothing_is_kept_of_the_cancelled_waits_of_a_dead_process() -> None:
    room = Room()
    room.desk.cancel(room.sleep(A))
    room.desk.die("a")
    assert not room.condition._interrupted


class AnyOrder(RuleBasedStateMachine):
    """Four processes of one thread each, which has at most one call under way.

    The model knows who sleeps, who is on the way to the lock with or without a notification, and who owns it.
    """

    @initialize(recursive=st.booleans(), lock_hears_first=st.booleans())
    def begin(self, recursive: bool, lock_hears_first: bool) -> None:
        self.recursive = recursive
        self.room = Room(recursive, lock_hears_first)
        self.desk = self.room.desk
        self.desk._on_outcome = self.heard
        self.owner: Party | None = None
        self.depth = 0
        self.acquiring: dict[Waiter, None] = {}
        self.sleeping: dict[Waiter, int] = {}  # how often it owned the lock
        self.notified: dict[Waiter, int] = {}
        self.timed_out: dict[Waiter, int] = {}
        self.interrupted: dict[Party, int] = {}
        self.resuming: dict[Waiter, int] = {}
        self.births = 4
        self.everybody = [party(str(number)) for number in range(1, 5)]

    @property
    def calls(self) -> tuple[dict[Waiter, object], ...]:
        return (self.acquiring, self.sleeping, self.notified, self.timed_out, self.resuming)  # type: ignore[return-value]

    def idle(self) -> list[Party]:
        blocked = {waiter.party for calls in self.calls for waiter in calls} | set(self.interrupted)
        return [who for who in self.everybody if who not in blocked]

    def heard(self, outcome: CallOutcome) -> None:
        waiter = outcome.waiter
        depth = 1
        if waiter in self.acquiring:
            if outcome.value is False or (self.recursive and self.owner == waiter.party):
                return
            del self.acquiring[waiter]
            self.desk.lent.pop(waiter)
            self.room.lock.taken(waiter)
        elif waiter in self.notified:
            assert outcome.value is True or isinstance(outcome.value, str), "a notification was lost"
            depth = self.notified.pop(waiter)
        elif waiter in self.timed_out:
            assert outcome.value is False
            depth = self.timed_out.pop(waiter)
        elif waiter in self.resuming:
            depth = self.resuming.pop(waiter)
        else:
            assert waiter not in self.sleeping, "woken without a notification"
            return
        assert self.owner is None, "two owners"
        self.owner, self.depth = waiter.party, depth

    def made(self, state: object, method: str, waiter: Waiter) -> None:
        self.desk.waiting[waiter] = state
        self.desk._hear(getattr(state, method)(waiter))

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        waiter = Waiter(data.draw(st.sampled_from(self.idle())))
        self.acquiring[waiter] = None
        self.made(self.room.lock, "acquire", waiter)
        if waiter in self.acquiring and self.recursive and self.owner == waiter.party:
            del self.acquiring[waiter]
            self.desk.taken(waiter)
            self.depth += 1

    @precondition(lambda self: self.owner in self.idle())
    @rule()
    def release(self) -> None:
        owner = self.owner
        assert owner is not None
        self.depth -= 1
        if self.depth == 0:
            self.owner = None
        self.room.release(owner)

    @precondition(lambda self: self.owner in self.idle())
    @rule()
    def wait(self) -> None:
        assert self.owner is not None
        waiter = Waiter(self.owner)
        self.sleeping[waiter] = self.depth
        self.owner, self.depth = None, 0
        self.made(self.room.condition, "wait", waiter)

    def wake(self, n: int) -> None:
        for waiter in list(self.sleeping)[:n]:
            self.notified[waiter] = self.sleeping.pop(waiter)

    @precondition(lambda self: self.owner in self.idle())
    @rule(n=st.integers(1, 4))
    def notify(self, n: int) -> None:
        assert self.owner is not None
        self.wake(n)
        self.room.notify(self.owner, n)

    @precondition(lambda self: self.desk.waiting)
    @rule(data=st.data())
    def time_over(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(list(self.desk.waiting)))
        if waiter in self.sleeping:
            self.timed_out[waiter] = self.sleeping.pop(waiter)
        self.desk.time_over(waiter)
        if waiter in self.acquiring:
            del self.acquiring[waiter]
            assert self.desk.end(waiter) is False

    @precondition(lambda self: self.desk.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(list(self.desk.waiting)))
        was_notified = waiter in self.notified
        for calls in (self.sleeping, self.notified, self.timed_out, self.resuming):
            if waiter in calls:
                self.interrupted[waiter.party] = calls.pop(waiter)
        self.acquiring.pop(waiter, None)
        self.wake(was_notified)
        self.desk.cancel(waiter)

    @precondition(lambda self: self.interrupted)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        waiter = Waiter(data.draw(st.sampled_from(list(self.interrupted))))
        self.resuming[waiter] = self.interrupted.pop(waiter.party)
        self.made(self.room.condition, "resume", waiter)

    @rule(of=st.integers(0, 3))
    def death(self, of: int) -> None:
        self.births += 1
        gone, self.everybody[of] = self.everybody[of], party(str(self.births))
        num_handed_on = sum(waiter.party == gone for waiter in self.notified)
        for calls in self.calls:
            for waiter in [waiter for waiter in calls if waiter.party == gone]:
                del calls[waiter]
        self.interrupted.pop(gone, None)
        self.wake(num_handed_on)
        if self.owner == gone:
            self.owner, self.depth = None, 0
        self.desk.die(gone.process)

    @invariant()
    def all_that_can_go_on_does(self) -> None:
        if self.owner is None:
            assert not (self.acquiring or self.notified or self.timed_out or self.resuming)
            assert self.room.owner() == ""
        else:
            assert self.desk.ask(self.room.lock, "standing", self.owner) == ("me", self.depth)

    @invariant()
    def those_that_sleep_are_those_that_were_not_notified(self) -> None:
        assert self.room.num_waiters() == len(self.sleeping)
        assert set(self.desk.waiting) == {waiter for calls in self.calls for waiter in calls}


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=50)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.soak
class TestMoreOrders(AnyOrder.TestCase):
    settings = settings(deadline=None, max_examples=1_000, stateful_step_count=50)


@pytest.mark.parametrize("recursive", [False, True])
def test_a_thread_that_had_no_wait_cancelled_resumes_with_the_lock_once(recursive: bool) -> None:
    lock = LockState(recursive)
    condition = ConditionState(lock)
    desk, me = Desk(condition, lock), party("1")
    assert desk.ask(condition, "resume", me) is True
    assert lock.depth == 1
    assert desk.ask(condition, "resume", me) is True, "it has it"
    assert lock.depth == 1
    desk.ask(lock, "release", me)
    assert not lock.owned_by(me)


def test_claims_that_were_granted_are_not_kept() -> None:
    lock = LockState()
    condition = ConditionState(lock)
    desk = Desk(condition, lock)
    for number in range(20):
        who = party(str(number))
        desk.ask(lock, "acquire", who)
        waiter = desk.call(condition, "wait", who)
        desk.ask(lock, "acquire", party("notifier"))
        desk.ask(condition, "notify", party("notifier"))
        desk.ask(lock, "release", party("notifier"))
        assert desk.end(waiter) is True
        desk.ask(lock, "release", who)
    assert len(condition._awake) == 1
