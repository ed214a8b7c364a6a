"""Steady state, as lists of instructions."""

from __future__ import annotations

import pytest

from ropewalk.population.pacing.modes import SteadyMode
from ropewalk.population.pacing.pacing import Ask, Tell, Ticket
from ropewalk.population.pacing.steady import Steady


def test_each_is_told_in_the_order_of_arrival_and_replaced() -> None:
    pacing = Steady(1.0)
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
    pacing = Steady(1.0)
    pacing.next(0.0, 1)
    pacing.asked([Ticket(0, 0)], 0.0)
    assert pacing.next(0.0, 1) is None
    assert pacing.next(0.0, 5) == Ask(4)


def test_one_candidate_is_missing_as_soon_as_one_was_told_or_before_there_are_workers() -> None:
    pacing = Steady(1.0)
    assert pacing.next(0.0, 0) == Ask(1), "evaluated as soon as there is a worker"
    pacing.asked([Ticket(0, 0)], 0.0)
    assert pacing.next(0.0, 0) is None
    assert pacing.next(0.0, 2) == Ask(1)
    pacing.asked([Ticket(1, 0)], 0.0)
    pacing.ended(Ticket(0, 0), 0.0)
    assert pacing.next(0.0, 2) == Tell((Ticket(0, 0),))
    assert pacing.next(0.0, 2) == Ask(1)


@pytest.mark.parametrize("gave_fewer", [False, True])
def test_a_resumed_run_has_what_was_under_way_and_knows_whether_the_algorithm_waits_to_be_told(
    gave_fewer: bool,
) -> None:
    pacing = Steady(1.0)
    assert pacing.next(0.0, 3 if gave_fewer else 2) == Ask(3 if gave_fewer else 2)
    tickets = [Ticket(0, 0), Ticket(0, 1)]
    pacing.asked(tickets, 0.0)
    again = Steady(1.0)
    again.load_state_dict(pacing.state_dict())
    assert again.under_way == tickets
    assert again.next(0.0, 3) == (None if gave_fewer else Ask(1))
    again.ended(tickets[1], 0.0)
    assert again.next(0.0, 3) == Tell((tickets[1],))
    assert again.next(0.0, 3) == Ask(2)


def test_less_than_one_candidate_for_each_worker_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 candidate.*not 0\.5"):
        SteadyMode(0.5)
