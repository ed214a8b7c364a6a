"""Steady state, as lists of instructions."""

from __future__ import annotations

import pytest

from ropewalk.population.pacing.pacing import Ask, Tell, Ticket
from ropewalk.population.pacing.steady import Steady


def test_each_is_told_in_the_order_of_arrival_and_replaced() -> None:
    pacing = Steady()
    assert pacing.next(0.0, 3) == Ask(3)
    tickets = [Ticket(0, at) for at in range(3)]
    pacing.asked(tickets, 0.0)
    assert pacing.next(0.0, 3) is None
    pacing.ended(tickets[2], 0.0)
    pacing.ended(tickets[0], 0.0)
    assert pacing.next(0.0, 3) == Tell((tickets[2],))
    assert pacing.next(0.0, 3) == Tell((tickets[0],))
    assert pacing.next(0.0, 3) == Ask(2)


def test_an_algorithm_that_gave_fewer_is_asked_again_only_after_a_tell() -> None:
    pacing = Steady(ahead=2.0)
    assert pacing.next(0.0, 2) == Ask(4)
    pacing.asked([Ticket(0, 0)], 0.0)
    assert pacing.next(0.0, 2) is None
    pacing.ended(Ticket(0, 0), 0.0)
    assert pacing.next(0.0, 2) == Tell((Ticket(0, 0),))
    assert pacing.next(0.0, 2) == Ask(4)


def test_more_workers_get_more_candidates() -> None:
    pacing = Steady()
    pacing.next(0.0, 1)
    pacing.asked([Ticket(0, 0)], 0.0)
    assert pacing.next(0.0, 1) is None
    assert pacing.next(0.0, 5) == Ask(4)


def test_less_than_one_candidate_for_each_worker_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 candidate.*not 0\.5"):
        Steady(0.5)
