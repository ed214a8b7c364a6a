"""The mailbox of a worker: which of the states that came belong to the view that it enters."""

from __future__ import annotations

import pytest

from ropewalk.errors import ExchangeAborted, ProgramStopped
from ropewalk.exchange.elastic.mailbox import Mailbox
from ropewalk.exchange.elastic.membership import MembershipView

ALL, SOME, NEW = ("a", "b", "c"), ("a", "c"), ("c",)


def view(epoch: int, step: int, before: tuple[tuple[str, ...], ...] = ()) -> MembershipView:
    return MembershipView(epoch, step, SOME if before else ALL, NEW, before=before)


def test_the_state_of_an_earlier_epoch_of_the_step_is_as_good() -> None:
    mailbox = Mailbox(lambda view: None)
    mailbox.put_view(view(3, 5))
    mailbox.put_state(3, b"after 5 steps")
    mailbox.put_view(view(4, 5, (ALL,)))  # one has finished
    mailbox.end(ProgramStopped("the training is over"))
    assert mailbox.wait_state(view(4, 5, (ALL,))) == b"after 5 steps"


def test_a_state_of_an_earlier_step_is_none() -> None:
    mailbox = Mailbox(lambda view: None)
    mailbox.put_view(view(3, 5))
    mailbox.put_state(3, b"after 5 steps")
    mailbox.put_view(view(4, 6))
    mailbox.put_state(3, b"after 5 steps, and late")
    mailbox.put_view(view(5, 6, (ALL,)))
    with pytest.raises(ExchangeAborted, match="epoch 4 ended"):
        mailbox.wait_state(view(4, 6))


def test_before_the_first_commit_each_rank_0_has_weights_of_its_own() -> None:
    mailbox = Mailbox(lambda view: None)
    mailbox.put_view(view(0, 0))
    mailbox.put_state(0, b"of a, which died")
    mailbox.put_view(view(1, 0, (ALL,)))
    mailbox.put_view(view(2, 0, (ALL, SOME)))
    with pytest.raises(ExchangeAborted, match="epoch 1 ended"):
        mailbox.wait_state(view(1, 0, (ALL,)))


def test_a_state_that_comes_after_a_newer_one_was_taken_is_dropped() -> None:
    mailbox = Mailbox(lambda view: None)
    mailbox.put_view(view(3, 5))
    mailbox.put_state(3, b"first")
    mailbox.put_view(view(4, 5, (ALL,)))
    assert mailbox.wait_state(view(4, 5, (ALL,))) == b"first"
    mailbox.put_state(4, b"of the same")
    mailbox.put_view(view(5, 5, (ALL, SOME)))
    mailbox.put_state(5, b"with a batch more left out")
    assert mailbox.wait_state(view(5, 5, (ALL, SOME))) == b"with a batch more left out"
    mailbox.put_view(view(6, 6))
    with pytest.raises(ExchangeAborted, match="epoch 5 ended"):
        mailbox.wait_state(view(5, 5, (ALL, SOME)))
