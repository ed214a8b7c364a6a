"""The coordinator's decisions, by comparing what goes in with what comes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.exchange.elastic.membership import (
    Commit,
    EpochPhase,
    Expel,
    Finish,
    Form,
    Instruction,
    Membership,
    MembershipView,
    RefusedBatch,
)


def begun(*names: str) -> Membership:
    membership = Membership(len(names))
    for name in names:
        membership.joins(name)
    return membership


def vote_of_all(membership: Membership) -> list[Instruction]:
    assert membership.view
    epoch, step = membership.view.epoch, membership.step
    return [said for name in membership.members for said in membership.voted(name, epoch, step, 2.0, 1.0)]


def test_training_begins_when_all_founders_are_here() -> None:
    membership = Membership(2)
    assert membership.joins("a") == []
    assert membership.joins("b") == [Form(MembershipView(0, 0, ("a", "b"), newcomers=("b",)))]


def test_training_begins_with_those_who_are_here_when_that_takes_too_long() -> None:
    membership = Membership(3)
    assert membership.gathers_no_more() == []  # nobody is
    membership.joins("a")
    assert membership.gathers_no_more() == [Form(MembershipView(0, 0, ("a",)))]


def test_a_step_counts_when_every_member_has_voted() -> None:
    membership = begun("a", "b")
    assert membership.voted("b", 0, 0, loss=6.0, samples=2.0) == []
    assert membership.awaited == ("a",)
    assert membership.voted("a", 0, 0, loss=3.0, samples=1.0) == [Commit(0, 0, ("a", "b"), loss=3.0)]
    assert membership.step == 1


def test_after_a_death_the_same_step_is_done_by_the_others() -> None:
    membership = begun("a", "b", "c")
    membership.voted("b", 0, 0)
    membership.voted("c", 0, 0)
    assert membership.died("a", "was killed") == [
        Form(MembershipView(1, 0, ("b", "c"), newcomers=("c",), before=(("a", "b", "c"),), lost=("a",)))
    ]
    assert membership.voted("b", 0, 0) == []  # what it says of the old epoch counts for nothing
    assert membership.awaited == ("b", "c")
    assert membership.history[-1].why == "a was killed"


def test_who_joins_takes_part_from_the_next_step_and_comes_last() -> None:
    membership = begun("a", "b")
    assert membership.joins("c") == []
    assert vote_of_all(membership) == [
        Commit(0, 0, ("a", "b"), loss=2.0, changes=True),
        Form(MembershipView(1, 1, ("a", "b", "c"), newcomers=("c",), loss=2.0)),
    ]


def test_nobody_joins_in_the_middle_of_a_step() -> None:
    membership = begun("a", "b")
    membership.joins("c")
    assert membership.died("b") == [Form(MembershipView(1, 0, ("a",), before=(("a", "b"),), lost=("b",)))]


def test_all_agree_on_who_had_begun_a_step_whichever_view_they_see() -> None:
    membership = begun("a", "b", "c", "d")
    vote_of_all(membership)
    membership.died("d")
    [said] = membership.died("c")
    before = (("a", "b", "c", "d"), ("a", "b", "c"))
    assert said == Form(MembershipView(2, 1, ("a", "b"), loss=2.0, before=before, lost=("d", "c")))
    vote_of_all(membership)
    [said] = membership.died("b")
    assert said == Form(MembershipView(3, 2, ("a",), loss=2.0, before=(("a", "b"),), lost=("b",)))


def test_who_leaves_hands_over_before_the_others_go_on() -> None:
    membership = begun("a", "b", "c")
    membership.leaves("a")
    assert vote_of_all(membership) == [Commit(0, 0, ("a", "b", "c"), loss=2.0, parting=("a",), changes=True)]
    assert membership.awaited == ("a",)
    assert membership.left("a", has_will=True) == [Form(MembershipView(1, 1, ("b", "c"), has_wills=True, loss=2.0))]
    vote_of_all(membership)
    assert membership.died("c") == [Form(MembershipView(2, 2, ("b",), loss=2.0, before=(("b", "c"),), lost=("c",)))]


def test_a_will_stays_until_a_step_is_committed_with_it() -> None:
    membership = begun("a", "b", "c")
    membership.leaves("b")
    vote_of_all(membership)
    membership.left("b", has_will=True)
    [said] = membership.died("a")  # perhaps it had taken the will over
    assert said == Form(MembershipView(2, 1, ("c",), has_wills=True, loss=2.0, before=(("a", "c"),), lost=("a",)))
    assert membership.wills == ("b",)
    vote_of_all(membership)
    assert membership.wills == ()


def test_who_leaves_with_a_will_that_it_had_taken_over_leaves_both_once() -> None:
    membership = begun("a", "b", "c")
    membership.leaves("b")
    vote_of_all(membership)
    membership.left("b", has_will=True)
    membership.left("a", has_will=True, includes=["b"])
    assert membership.wills == ("a",)


def test_who_leaves_while_another_one_hands_over_hands_over_too() -> None:
    # It is asked to stop between two steps. Its residuals were dropped, and its end counted as a death.
    membership = begun("a", "b", "c")
    membership.leaves("a")
    vote_of_all(membership)
    assert membership.left("b", has_will=True) == []
    assert membership.died("b", "its node has ended") == []
    assert membership.left("a") == [Form(MembershipView(1, 1, ("c",), has_wills=True, loss=2.0))]
    assert (membership.wills, membership.history[-1].why) == (("b",), "b left, a left")


def test_who_has_voted_cannot_leave_before_the_outcome_also_where_it_stayed_when_others_left() -> None:
    membership = begun("a", "b", "c")
    membership.leaves("a")
    vote_of_all(membership)
    membership.left("a")
    membership.voted("b", 1, 1)
    assert membership.left("b", has_will=True) == [] and membership.wills == ()


def test_an_error_of_a_worker_counts_unless_it_was_taken_for_dead() -> None:
    membership = begun("a", "b", "c")
    membership.finished("c")
    assert membership.failed("a") == membership.failed("c") == []
    membership.died("b")
    assert membership.failed("b") == [Expel("b", "b was taken for dead, or had left")]


def test_a_batch_is_refused_by_all_members_in_another_epoch() -> None:
    batch = RefusedBatch(1, "NaN on rank 1", (1,), ("weight",))
    membership = begun("a", "b", "c")
    membership.joins("d")
    vote_of_all(membership)
    membership.died("c")
    assert membership.refuses("a", 1, batch) == [], "the step is done again without c"
    assert membership.refuses("b", 2, RefusedBatch(0, "")) == []
    assert membership.refuses("e", 2, batch) == []
    membership.voted("a", 2, 1)
    members = ("a", "b", "d")
    assert membership.refuses("b", 2, batch) == [
        Form(MembershipView(3, 1, members, ("d",), loss=2.0, lost=("c",), num_refused=1, refused=batch))
    ]
    assert membership.history[-1].why == "b refused a batch of step 1"
    assert membership.refuses("a", 2, batch) == [], "it is the same one"
    assert membership.awaited == members
    [said] = membership.died("d")
    assert said == Form(
        MembershipView(4, 1, ("a", "b"), loss=2.0, before=(members,), lost=("c", "d"), num_refused=1, refused=batch)
    )
    [said] = membership.refuses("c", 4, batch)
    assert isinstance(said, Expel)


def test_who_cannot_wait_leaves_in_the_middle_of_a_step_that_the_others_do_without_it() -> None:
    membership = begun("a", "b", "c")
    membership.voted("b", 0, 0)
    [said] = membership.left("a", has_will=True)
    assert said == Form(MembershipView(1, 0, ("b", "c"), ("c",), has_wills=True, before=(("a", "b", "c"),)))
    membership.voted("b", 1, 0)
    assert membership.left("b", has_will=True) == []  # too late: the step may count with what it sent
    assert membership.members == ("b", "c")


def test_who_dies_while_it_leaves_holds_up_nobody() -> None:
    membership = begun("a", "b")
    membership.leaves("b")
    vote_of_all(membership)
    assert membership.died("b") == [Form(MembershipView(1, 1, ("a",), loss=2.0, lost=("b",)))]


def test_the_last_one_stays_until_a_joiner_has_the_weights() -> None:
    membership = begun("a")
    membership.joins("b")
    membership.leaves("a")
    assert Form(MembershipView(1, 1, ("a", "b"), newcomers=("b",), loss=2.0)) in vote_of_all(membership)
    commit, *_ = vote_of_all(membership)
    assert isinstance(commit, Commit)
    assert commit.parting == ("a",)


def test_training_fails_when_the_weights_are_gone() -> None:
    membership = begun("a")
    membership.joins("b")
    vote_of_all(membership)
    [said] = membership.died("a")  # b is a member, but has not got them yet
    assert isinstance(said, Finish)
    assert said.failed


def test_training_is_over_when_all_have_finished() -> None:
    membership = begun("a", "b")
    assert membership.finished("a") == [Form(MembershipView(1, 0, ("b",), before=(("a", "b"),)))]
    assert membership.finished("b") == [Finish("no worker is left after 0 steps: b has finished")]
    assert membership.joins("c") == []


def test_who_dies_after_somebody_has_finished_takes_nothing_along() -> None:
    membership = begun("a", "b")
    vote_of_all(membership)
    membership.finished("a")
    assert membership.died("b") == [Finish("no worker is left after 1 steps: b died")]


def test_a_leaver_whose_code_has_ended_is_no_end_of_the_training() -> None:
    """After `running.scale("workers", 1)` the death of the last worker ended the program as a success, at any step."""
    membership = begun("a", "b")
    membership.leaves("b")
    vote_of_all(membership)
    membership.left("b")
    membership.finished("b")  # its batches have ended, while a goes on
    [said] = membership.died("a")
    assert isinstance(said, Finish)
    assert said.failed


def test_who_finished_before_a_later_step_has_not_the_weights_of_all_steps() -> None:
    membership = begun("a", "b")
    vote_of_all(membership)
    membership.finished("a")
    vote_of_all(membership)
    [said] = membership.died("b")
    assert isinstance(said, Finish)
    assert said.failed
    assert said.why.startswith("b died, and nobody is left who has the weights of step 2;")


def test_training_is_over_when_all_who_have_the_weights_have_finished() -> None:
    membership = begun("a")
    membership.joins("b")
    vote_of_all(membership)
    [said] = membership.finished("a")  # it was the last step: b has nothing to do
    assert said == Finish("no worker is left after 1 steps: a has finished")


def test_who_was_taken_for_dead_is_told_so() -> None:
    membership = begun("a", "b")
    membership.died("b")
    [said] = membership.voted("b", 0, 0)
    assert isinstance(said, Expel)
    [said] = membership.joins("b")
    assert isinstance(said, Expel)


def test_a_vote_for_another_step_is_refused() -> None:
    membership = begun("a", "b")
    with pytest.raises(ValueError, match="step 4 of epoch 0, which is at step 0"):
        membership.voted("a", 0, 4)


def test_a_training_has_a_founder() -> None:
    with pytest.raises(ValueError, match="1 worker or more, not 0"):
        Membership(0)


def test_founders_are_sorted_by_number_whoever_comes_first() -> None:
    membership = Membership(3)
    assert membership.awaited == ()
    membership.joins("w.10")
    assert membership.joining == ("w.10",)
    membership.joins("w.9")
    membership.joins("w.2")
    assert membership.members == ("w.2", "w.9", "w.10")
    assert membership.joining == ()
    assert membership.history[0].why == "3 workers begin"


def test_nobody_waits_for_a_founder_that_has_finished_before_it_came() -> None:
    membership = Membership(3)
    membership.joins("a")
    assert membership.finished("b") == []
    assert membership.finished("c") == [Form(MembershipView(0, 0, ("a",)))]
    membership = Membership(3)
    membership.finished("a")
    membership.joins("b")
    assert membership.joins("c") == [Form(MembershipView(0, 0, ("b", "c"), newcomers=("c",)))]
    [said] = membership.joins("a")
    assert isinstance(said, Expel)


def test_training_is_over_when_all_founders_have_finished_before_it_began() -> None:
    membership = Membership(2)
    assert membership.finished("a") == []
    assert membership.finished("b") == [Finish("no worker has done a step")]
    assert membership.phase is EpochPhase.OVER
    assert membership.awaited == ()
    assert membership.joins("c") == []
    assert membership.joining == ()


def test_nobody_waits_for_a_founder_that_died_and_is_not_restarted() -> None:
    """With restart="never", a worker that died before it joined held up the others for `start_s`."""
    membership = Membership(3, restarts=False)
    membership.joins("a")
    assert membership.died("b") == []
    assert membership.died("b") == [], "its end is told twice"
    assert membership.died("c") == [Form(MembershipView(0, 0, ("a",)))]
    membership = Membership(2)
    membership.joins("a")
    assert membership.died("b") == [], "its successor comes"


def test_training_fails_when_all_founders_died_before_it_began() -> None:
    """The coordinator, and the program, waited for ever for a worker to join."""
    membership = Membership(2, restarts=False)
    membership.died("a", "is out of memory")
    assert membership.died("b", "was killed") == [
        Finish("no worker has done a step, and none is left: a is out of memory; b was killed", failed=True)
    ]
    membership = Membership(2, restarts=False)
    membership.finished("a")
    [said] = membership.died("b")
    assert isinstance(said, Finish)
    assert said.failed
    membership = Membership(2, restarts=False)
    membership.died("a")
    assert membership.finished("b") == [Finish("no worker has done a step")]


def test_who_finishes_without_the_weights_of_a_step_has_finished_nothing() -> None:
    membership = begun("a", "b")
    membership.finished("a")
    [said] = membership.died("b")
    assert isinstance(said, Finish)
    assert said.failed


def test_a_worker_that_joins_again_or_no_longer_wants_to_changes_nothing() -> None:
    membership = begun("a")
    membership.joins("a")
    assert membership.joining == ()
    membership.joins("b")
    membership.joins("c")
    membership.died("c")
    assert membership.joining == ("b",)
    membership.leaves("b")
    assert membership.joining == ()
    assert vote_of_all(membership) == [Commit(0, 0, ("a",), loss=2.0)]
    membership.joins("b")
    assert vote_of_all(membership)[1:] == [Form(MembershipView(1, 2, ("a", "b"), ("b",), loss=2.0))]
    assert membership.history[-1].why == "b joined"
    assert vote_of_all(membership) == [Commit(1, 2, ("a", "b"), loss=2.0)], "its wish to leave was of its first try"


def test_votes_of_others_and_votes_without_samples_count_for_nothing() -> None:
    membership = begun("a", "b")
    membership.joins("c")
    assert membership.voted("c", 0, 0, 100.0, 1.0) == []
    assert membership.awaited == ("a", "b")
    membership.leaves("c")
    membership.voted("a", 0, 0, 3.0, 1.0)
    assert membership.voted("a", 0, 0, 3.0, 1.0) == []
    assert membership.voted("b", 0, 0) == [Commit(0, 0, ("a", "b"), loss=3.0)]
    membership.voted("a", 0, 1)
    assert membership.voted("b", 0, 1) == [Commit(0, 1, ("a", "b"), loss=0.0)]


def test_a_vote_is_late_while_leavers_hand_over() -> None:
    membership = begun("a", "b", "c")
    membership.leaves("a")
    membership.leaves("b")
    vote_of_all(membership)
    assert membership.awaited == ("a", "b")
    assert membership.voted("c", 0, 1, 1.0, 1.0) == []
    assert membership.left("d", has_will=True) == [] and membership.wills == (), "it is no member"
    assert membership.left("b") == []
    assert membership.awaited == ("a",)
    assert membership.left("a") == [Form(MembershipView(1, 1, ("c",), loss=2.0))]
    assert membership.history[-1].why == "b left, a left"
    assert membership.wills == ()
    [said] = membership.voted("a", 0, 1)
    assert isinstance(said, Expel)


def test_only_the_last_one_with_the_weights_is_kept_for_a_joiner() -> None:
    membership = begun("a", "b")
    membership.joins("c")
    membership.leaves("b")
    commit, *_ = vote_of_all(membership)
    assert commit == Commit(0, 0, ("a", "b"), loss=2.0, parting=("b",), changes=True)
    membership = begun("a", "b")
    membership.joins("c")
    membership.leaves("a")
    membership.leaves("b")
    commit, *_ = vote_of_all(membership)
    assert commit == Commit(0, 0, ("a", "b"), loss=2.0, parting=("b",), changes=True)


def test_training_is_over_when_all_members_have_left() -> None:
    membership = begun("a", "b")
    membership.leaves("a")
    membership.leaves("b")
    vote_of_all(membership)
    assert membership.left("a", has_will=True) == []
    assert membership.left("b") == [Finish("no worker is left after 1 steps: a left, b left")]


def test_training_fails_when_the_last_one_with_the_weights_dies_while_it_leaves() -> None:
    membership = begun("a", "b")
    membership.leaves("a")
    membership.leaves("b")
    vote_of_all(membership)
    membership.died("a", "was killed")
    [said] = membership.left("b")
    assert isinstance(said, Finish)
    assert said.failed
    assert said.why.startswith("a was killed, b left, and nobody is left who has the weights of step 1;")


def test_a_death_in_one_change_of_members_is_none_of_the_next() -> None:
    membership = begun("a", "b", "c")
    membership.leaves("b")
    vote_of_all(membership)
    assert membership.died("b") == [Form(MembershipView(1, 1, ("a", "c"), loss=2.0, lost=("b",)))]
    membership.leaves("a")
    membership.leaves("c")
    vote_of_all(membership)
    membership.left("a")
    assert membership.left("c") == [Finish("no worker is left after 2 steps: a left, c left")]


def test_who_dies_after_it_has_left_or_before_it_takes_part_has_lost_nothing() -> None:
    membership = begun("a", "b", "c", "d")
    membership.joins("e")
    membership.leaves("b")
    membership.leaves("c")
    vote_of_all(membership)
    membership.left("b")
    assert membership.died("b") == []
    assert membership.died("e") == []
    assert membership.died("d", "was killed") == [], "the others are told when all have handed over"
    assert membership.awaited == ("c",)
    assert membership.left("c") == [Form(MembershipView(1, 1, ("a",), loss=2.0, lost=("d",)))]
    assert membership.history[-1].why == "b left, d was killed, c left"


def test_a_new_one_that_dies_takes_no_weights_along() -> None:
    membership = begun("a")
    membership.joins("b")
    vote_of_all(membership)
    assert membership.died("b") == [
        Form(MembershipView(2, 1, ("a",), loss=2.0, before=(("a", "b"),), lost=("b",))),
    ]
    membership.joins("c")
    vote_of_all(membership)
    vote_of_all(membership)
    [said] = membership.died("a")
    assert said == Form(MembershipView(4, 3, ("c",), loss=2.0, before=(("a", "c"),), lost=("a",))), "c has them"


class Training(RuleBasedStateMachine):
    """Workers that do whatever they may, in any order, while the test notes what each of them knows."""

    def __init__(self) -> None:
        super().__init__()
        self.born = 0
        self.alive: set[str] = set()
        self.steps: dict[str, int] = {}
        """By worker that has weights: after how many steps they are."""
        self.done: list[Commit] = []
        self.parting: set[str] = set()
        self.over: Finish | None = None

    @initialize(founders=st.integers(1, 4))
    def begin(self, founders: int) -> None:
        self.membership = Membership(founders)
        for _ in range(founders):
            self.join()

    def hear(self, instructions: list[Instruction]) -> None:
        for said in instructions:
            match said:
                case Commit():
                    assert said.step == len(self.done)
                    self.done.append(said)
                    self.parting = set(said.parting)
                    for name in said.members:
                        assert self.steps[name] == said.step
                        self.steps[name] += 1
                case Form(view):
                    assert view.step == len(self.done)
                    assert view.members[0] not in view.newcomers
                    if view.step:
                        assert set(view.members) - set(view.newcomers) <= self.steps.keys()
                    self.steps = dict.fromkeys(view.members, self.steps.get(view.members[0], 0))
                    assert set(self.steps.values()) == {view.step}
                    self.parting = set()
                case Finish():
                    assert self.over is None
                    self.over = said
                case Expel():
                    raise AssertionError("nobody here is taken for dead")

    @rule()
    def join(self) -> None:
        name, self.born = f"w.{self.born}", self.born + 1
        self.alive.add(name)
        self.hear(self.membership.joins(name))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def vote(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        view = self.membership.view
        if view and name in view.members and name not in self.parting:
            self.hear(self.membership.voted(name, view.epoch, len(self.done), 1.0, 1.0))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), finishes=st.booleans())
    def go(self, data: Any, finishes: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        if finishes and name in self.membership.members and name not in self.parting:
            self.alive.discard(name)
            self.hear(self.membership.finished(name))
        else:
            self.hear(self.membership.leaves(name))
            if name not in self.membership.members:
                self.alive.discard(name)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(name)
        self.parting.discard(name)
        self.hear(self.membership.died(name))

    @rule()
    def hand_over(self) -> None:
        for name in sorted(self.parting & self.alive):
            self.alive.discard(name)
            self.hear(self.membership.left(name, has_will=True))

    @rule()
    def do_a_whole_step(self) -> None:
        """Whatever happened: if all do what they are waited for, it goes on."""
        self.hand_over()
        before = len(self.done)
        view = self.membership.view
        if self.over or view is None:
            return
        for name in self.membership.awaited:
            self.hear(self.membership.voted(name, view.epoch, before, 1.0, 1.0))
        assert len(self.done) == before + 1

    @invariant()
    def the_dead_are_no_members(self) -> None:
        if self.born and self.membership.phase in (EpochPhase.STEPPING, EpochPhase.GATHERING):
            assert set(self.membership.members) <= self.alive
            assert set(self.membership.joining) <= self.alive

    @invariant()
    def every_step_is_in_the_history_once(self) -> None:
        if self.born:
            done = [(span.epoch, span.members) for span in self.membership.history for _ in range(span.begin, span.end)]
            assert done == [(commit.epoch, commit.members) for commit in self.done]


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
