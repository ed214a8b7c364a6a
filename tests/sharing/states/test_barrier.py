"""Barriers: each rule by itself, and any order of calls, deaths and ends of time: rounds never mix."""

from __future__ import annotations

from threading import BrokenBarrierError
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.barrier import BarrierState
from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter
from tests.sharing.states.desk import Desk, party

A, B, C, D = (party(name) for name in "abcd")


def wait(desk: Desk, who: Party, has_action: bool = False) -> Waiter:
    return desk.call(desk.states[0], "wait", who, has_action)


def ask(desk: Desk, method: str, who: Party = D) -> Any:
    return desk.ask(desk.states[0], method, who)


def is_broken(desk: Desk, waiter: Waiter, why: str) -> bool:
    with pytest.raises(BrokenBarrierError, match=why):
        desk.end(waiter)
    return True


def test_the_last_to_come_lets_all_go_with_their_indexes_round_after_round() -> None:
    desk = Desk(BarrierState(3))
    for _ in range(2):
        first, second = wait(desk, A), wait(desk, B)
        assert ask(desk, "n_waiting") == 2
        assert set(desk.waiting) == {first, second}
        assert [desk.end(waiter) for waiter in (first, second, wait(desk, C))] == [0, 1, 2]
        assert ask(desk, "n_waiting") == 0


def test_a_barrier_of_one_never_makes_anybody_wait() -> None:
    desk = Desk(BarrierState(1))
    assert desk.end(wait(desk, A)) == 0
    assert desk.end(wait(desk, A, has_action=True)) == ("act", 0)
    ask(desk, "release", A)
    assert desk.end(wait(desk, A)) == 0


def test_the_last_to_come_acts_before_the_others_go() -> None:
    desk = Desk(BarrierState(2))
    first, actor = wait(desk, A, True), wait(desk, B, True)
    assert desk.end(actor) == ("act", 1)
    assert first in desk.waiting
    ask(desk, "release", B)
    assert desk.end(first) == 0


def test_those_that_come_while_the_action_runs_belong_to_the_next_round() -> None:
    desk = Desk(BarrierState(2))
    for who in (A, B):
        wait(desk, who, True)
    early = [wait(desk, C, True), wait(desk, D, True)]
    assert set(early) <= set(desk.waiting)
    ask(desk, "release", B)
    assert desk.end(early[1]) == ("act", 1)
    assert early[0] in desk.waiting
    ask(desk, "release", D)
    assert desk.end(early[0]) == 0


def test_an_action_that_fails_breaks_the_barrier() -> None:
    desk = Desk(BarrierState(2))
    first = wait(desk, A, True)
    wait(desk, B, True)
    ask(desk, "abort", B)
    assert is_broken(desk, first, "Process-b aborted it")
    assert ask(desk, "broken")
    assert is_broken(desk, wait(desk, C), "Process-b aborted it")


def test_a_wait_whose_time_is_over_breaks_the_barrier() -> None:
    desk = Desk(BarrierState(3))
    first, second = wait(desk, A), wait(desk, B)
    desk.time_over(first)
    assert is_broken(desk, first, "Process-a waited for too long")
    assert is_broken(desk, second, "Process-a waited for too long")
    assert ask(desk, "broken")


def test_the_first_reason_for_which_it_broke_is_told_until_it_is_reset() -> None:
    desk = Desk(BarrierState(2))
    ask(desk, "abort", A)
    ask(desk, "abort", B)
    assert is_broken(desk, wait(desk, C), "Process-a aborted it")


def test_a_party_that_dies_while_it_waits_breaks_the_barrier_with_its_name() -> None:
    desk = Desk(BarrierState(3))
    waiting = wait(desk, A)
    wait(desk, B)
    desk.die("b")
    assert is_broken(desk, waiting, "Process-b is gone")


def test_a_party_that_dies_while_it_acts_breaks_the_barrier_with_its_name() -> None:
    desk = Desk(BarrierState(2))
    waiting = wait(desk, A, True)
    wait(desk, B, True)
    early = wait(desk, C, True)
    desk.die("b")
    assert is_broken(desk, waiting, "Process-b is gone")
    assert is_broken(desk, early, "Process-b is gone")


def test_a_party_that_never_hears_that_it_shall_act_breaks_the_barrier() -> None:
    desk = Desk(BarrierState(2))
    waiting = wait(desk, A, True)
    desk.never_taken(wait(desk, B, True))
    assert is_broken(desk, waiting, "Process-b does not wait any more")


def test_giving_up_a_wait_whose_party_acts_already_breaks_nothing() -> None:
    desk = Desk(BarrierState(2))
    waiting = wait(desk, A, True)
    actor = wait(desk, B, True)
    desk.taken(actor)
    assert desk.states[0].give_up(actor, timed_out=True) == []
    ask(desk, "release", B)
    assert desk.end(waiting) == 0


def test_a_party_that_dies_elsewhere_breaks_nothing() -> None:
    desk = Desk(BarrierState(2))
    for who in (A, B):
        wait(desk, who)
    waiting = wait(desk, A)
    desk.die("b")
    assert waiting in desk.waiting
    assert not ask(desk, "broken")


def test_a_reset_sends_those_that_wait_away_and_begins_anew() -> None:
    desk = Desk(BarrierState(2))
    waiting = wait(desk, A)
    ask(desk, "reset")
    assert is_broken(desk, waiting, "Process-d reset it")
    assert not ask(desk, "broken")
    ask(desk, "abort")
    ask(desk, "reset")
    assert not ask(desk, "broken")
    assert [desk.end(waiter) for waiter in (wait(desk, A), wait(desk, B))] == [0, 1]


def test_a_reset_while_an_action_runs_lets_those_in_line_begin_anew() -> None:
    desk = Desk(BarrierState(2))
    first = wait(desk, A, True)
    wait(desk, B, True)
    early = wait(desk, C, True)
    ask(desk, "reset")
    assert is_broken(desk, first, "Process-d reset it")
    assert early in desk.waiting
    with pytest.raises(BrokenBarrierError, match="reset while its action ran"):
        ask(desk, "release", B)
    assert desk.end(wait(desk, D)) == 1
    assert desk.end(early) == 0


@pytest.mark.parametrize("leave", ["time over", "death"])
def test_one_that_leaves_the_line_breaks_the_next_round_only(leave: str) -> None:
    desk = Desk(BarrierState(2))
    first = wait(desk, A, True)
    wait(desk, B, True)
    leaving, early = wait(desk, C, True), wait(desk, D, True)
    if leave == "time over":
        desk.time_over(leaving)
        assert is_broken(desk, leaving, "Process-c waited for too long")
    else:
        desk.die("c")
    assert is_broken(desk, early, "Process-c")
    assert is_broken(desk, wait(desk, D), "Process-c")
    ask(desk, "release", B)
    assert desk.end(first) == 0
    assert ask(desk, "broken")


def test_no_parties_are_refused() -> None:
    with pytest.raises(ValueError, match="parties must be > 0, not 0"):
        BarrierState(0)


class AnyOrder(RuleBasedStateMachine):
    """Processes of one thread each, of which more than `parties` may come at once.

    The model is one list: who has come, and has neither been let go nor sent away. Its first `parties` are the round,
    the one behind them wait for the next.
    """

    @initialize(parties=st.integers(1, 3))
    def begin(self, parties: int) -> None:
        self.parties = parties
        self.state = BarrierState(parties)
        self.desk = Desk(self.state, on_outcome=self.heard)
        self.coming: list[Waiter] = []
        self.going: dict[int, Waiter] = {}  # by index: the round that is let go just now
        self.actor: Waiter | None = None
        self.old_actors: list[Party] = []  # whose rounds ended before their actions did
        self.broken = self.breaks_next = False
        self.births = 6
        self.everybody = [party(str(number)) for number in range(1, 7)]

    def heard(self, outcome: CallOutcome) -> None:
        waiter, value = outcome.waiter, outcome.value
        if waiter not in self.coming:
            return
        if isinstance(outcome.error, BrokenBarrierError):
            self.coming.remove(waiter)
        elif isinstance(value, tuple):
            assert value == ("act", self.parties - 1)
            assert waiter is self.coming[self.parties - 1] and self.actor is None and not self.going
            self.actor = waiter
        else:
            assert isinstance(value, int)
            self.go(value, waiter)

    def go(self, index: int, waiter: Waiter) -> None:
        assert self.coming[index] is waiter, "let go with another round, or with another index"
        assert index not in self.going and not self.broken
        self.going[index] = waiter
        if len(self.going) == self.parties:
            del self.coming[: self.parties]
            self.going.clear()

    def breaks(self) -> None:
        """The round that fills or acts ends here; the outcomes say what that means to whom."""
        self.broken, self.breaks_next = True, False
        if self.actor is not None:
            self.coming.remove(self.actor)
            self.old_actors.append(self.actor.party)
            self.actor = None

    def leaves(self, waiter: Waiter) -> None:
        if self.coming.index(waiter) < self.parties:
            self.breaks()
        else:
            self.breaks_next = True

    def idle(self) -> list[Party]:
        """Those that may call `wait`."""
        blocked = {waiter.party for waiter in self.coming} | set(self.old_actors)
        return [who for who in self.everybody if who not in blocked]

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), has_action=st.booleans())
    def wait(self, data: st.DataObject, has_action: bool) -> None:
        waiter = Waiter(data.draw(st.sampled_from(self.idle())))
        self.coming.append(waiter)
        self.desk.waiting[waiter] = self.state
        self.desk._hear(self.state.wait(waiter, has_action))

    @precondition(lambda self: self.actor)
    @rule()
    def release(self) -> None:
        actor, self.actor = self.actor, None
        assert actor is not None
        self.go(self.parties - 1, actor)
        # The outcomes of the round come before those of the line, which is empty if it breaks here.
        breaks, self.breaks_next = self.breaks_next, False
        ask(self.desk, "release", actor.party)
        self.broken = breaks

    @precondition(lambda self: self.actor)
    @rule(hears=st.booleans())
    def end_of_loan(self, hears: bool) -> None:
        actor = self.actor
        if actor not in self.desk.lent:
            return
        if hears:
            self.desk.taken(actor)
        else:
            self.breaks()
            self.old_actors.pop()
            self.desk.never_taken(actor)

    @precondition(lambda self: self.old_actors)
    @rule()
    def release_too_late(self) -> None:
        with pytest.raises(BrokenBarrierError):
            ask(self.desk, "release", self.old_actors.pop())

    @rule()
    def abort(self) -> None:
        self.breaks()
        ask(self.desk, "abort")

    @rule()
    def reset(self) -> None:
        self.breaks()
        self.broken = False
        ask(self.desk, "reset")

    @precondition(lambda self: self.desk.waiting)
    @rule(data=st.data(), timed_out=st.booleans())
    def end_of_patience(self, data: st.DataObject, timed_out: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.desk.waiting)))
        self.leaves(waiter)
        if timed_out:
            self.desk.time_over(waiter)
            assert isinstance(self.desk.ended[waiter].error, BrokenBarrierError)
        else:
            self.coming.remove(waiter)
            self.desk.cancel(waiter)

    @rule(of=st.integers(0, 5))
    def death(self, of: int) -> None:
        self.births += 1
        gone, self.everybody[of] = self.everybody[of], party(str(self.births))
        self.old_actors = [who for who in self.old_actors if who != gone]
        for waiter in [waiter for waiter in self.coming if waiter.party == gone]:
            self.leaves(waiter)
            if waiter in self.coming:
                self.coming.remove(waiter)
        self.old_actors = [who for who in self.old_actors if who != gone]
        self.desk.die(gone.process)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        assert not self.going, "a round was let go in part"
        assert set(self.desk.waiting) == set(self.coming) - {self.actor}
        if self.actor is None:
            assert len(self.coming) < (1 if self.broken else self.parties)
        assert ask(self.desk, "n_waiting") == min(len(self.coming), self.parties)

    @invariant()
    def it_is_broken_when_somebody_left(self) -> None:
        assert ask(self.desk, "broken") == self.broken


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=50)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.soak
class TestMoreOrders(AnyOrder.TestCase):
    settings = settings(deadline=None, max_examples=1_000, stateful_step_count=50)


def test_a_release_by_one_that_does_not_act_is_refused_and_lets_nobody_go() -> None:
    barrier = BarrierState(2)
    desk, a, b = Desk(barrier), party("a"), party("b")
    first = desk.call(barrier, "wait", a, True)
    desk.call(barrier, "wait", b, True)
    with pytest.raises(BrokenBarrierError):
        desk.ask(barrier, "release", a)  # b acts
    assert first in desk.waiting
    desk.ask(barrier, "release", b)
    assert desk.end(first) == 0


def test_without_a_word_of_an_action_there_is_none() -> None:
    barrier = BarrierState(2)
    desk = Desk(barrier)
    waiters = [desk.call(barrier, "wait", party(name)) for name in "ab"]
    assert [desk.end(waiter) for waiter in waiters] == [0, 1]


def test_one_that_acts_hears_of_a_reset_with_its_release_and_not_before() -> None:
    barrier = BarrierState(3)
    desk = Desk(barrier)
    first, second, actor = (desk.call(barrier, "wait", party(name), True) for name in "abc")
    assert desk.end(actor) == ("act", 2)
    desk.taken(actor)
    desk.ask(barrier, "reset", party("d"))
    for waiter in (first, second):
        with pytest.raises(BrokenBarrierError):
            desk.end(waiter)
    with pytest.raises(BrokenBarrierError, match="was reset while its action ran"):
        desk.ask(barrier, "release", party("c"))


def test_what_was_to_break_the_next_round_is_forgotten_with_a_reset() -> None:
    barrier = BarrierState(2)
    desk = Desk(barrier)
    desk.call(barrier, "wait", party("a"), True)
    actor = desk.call(barrier, "wait", party("b"), True)
    desk.taken(actor)
    desk.call(barrier, "wait", party("c"), True)
    desk.die("c")  # it waited for the next round
    desk.ask(barrier, "reset", party("d"))
    again = [desk.call(barrier, "wait", party(name), True) for name in "ef"]
    assert desk.end(again[1]) == ("act", 1)
    desk.taken(again[1])
    late = desk.call(barrier, "wait", party("g"), True)
    assert late in desk.waiting, "the round of e and f breaks nothing"


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_one_that_leaves_while_another_acts_for_its_round_breaks_it(leaver: int) -> None:
    barrier = BarrierState(4)
    desk = Desk(barrier)
    waiters = [desk.call(barrier, "wait", party(name), True) for name in "abcd"]
    assert desk.end(waiters[3]) == ("act", 3)
    desk.taken(waiters[3])
    desk.cancel(waiters[leaver])
    for index in {0, 1, 2} - {leaver}:
        with pytest.raises(BrokenBarrierError):
            desk.end(waiters[index])
    with pytest.raises(BrokenBarrierError):
        desk.ask(barrier, "release", party("d"))
