"""Generations, as lists of instructions: no pool, no clock."""

from __future__ import annotations

import pytest

from ropewalk.population.pacing.generational import Generational
from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Tell, Ticket
from ropewalk.population.pacing.stragglers import StragglerPolicy


def asked(rule: StragglerPolicy, num: int, ask: int = 0, now: float = 0.0) -> tuple[Generational, list[Ticket]]:
    pacing = Generational(lambda: num, rule)
    assert pacing.next(now, 4) == Ask(num)
    tickets = [Ticket(ask, position) for position in range(num)]
    pacing.asked(tickets, now)
    return pacing, tickets


def test_all_are_told_in_their_own_order_however_they_arrive() -> None:
    pacing, tickets = asked(StragglerPolicy.wait(), 4)
    for ticket in (tickets[2], tickets[0], tickets[3]):
        pacing.ended(ticket, 1.0)
        assert pacing.next(1e9, 4) is None and pacing.due is None
    pacing.ended(tickets[1], 2.0)
    assert pacing.due is None, "nothing is left to wait for"
    assert pacing.next(2.0, 4) == Tell(tuple(tickets))
    assert pacing.next(2.0, 4) == Ask(4)


def test_the_last_ones_are_dropped_when_their_grace_is_over() -> None:
    pacing, tickets = asked(StragglerPolicy.drop(after=0.5, grace=2.0), 4)
    pacing.ended(tickets[3], 1.0)
    assert pacing.due is None
    pacing.ended(tickets[1], 3.0)
    assert pacing.due == 9.0 and pacing.next(8.9, 4) is None
    pacing.ended(tickets[0], 8.95)
    assert pacing.next(9.0, 4) == CancelEvaluations((tickets[2],))
    assert pacing.next(9.0, 4) == Tell((tickets[0], tickets[1], tickets[3]))
    pacing.ended(tickets[2], 9.5)
    assert pacing.next(9.5, 4) == Ask(4)


@pytest.mark.parametrize(
    ("after", "num", "least"), [(0.07, 100, 7), (0.55, 100, 55), (5 / 9, 9, 5), (0.9, 11, 10), (1e-9, 3, 1)]
)
def test_a_share_is_the_fraction_that_was_written(after: float, num: int, least: int) -> None:
    # 0.07 of 100 were 8, as the float is a little more than 0.07.
    pacing, tickets = asked(StragglerPolicy.drop(after=after, grace=0.0), num)
    for ticket in tickets[: least - 1]:
        pacing.ended(ticket, 1.0)
    assert pacing.due is None
    pacing.ended(tickets[-1], 2.0)
    assert pacing.due == 2.0


def test_nobody_is_dropped_when_all_are_there_in_time() -> None:
    pacing, tickets = asked(StragglerPolicy.drop(after=0.5, grace=2.0), 2)
    for ticket in tickets:
        pacing.ended(ticket, 1.0)
    assert pacing.next(1.0, 4) == Tell(tuple(tickets))


def test_each_generation_has_its_grace_by_its_own_time() -> None:
    pacing, tickets = asked(StragglerPolicy.drop(after=0.5, grace=2.0), 1)
    pacing.ended(tickets[0], 100.0)
    assert pacing.next(100.0, 4) == Tell((tickets[0],))
    assert pacing.next(100.0, 4) == Ask(1)
    second = [Ticket(1, 0), Ticket(1, 1)]
    pacing.asked(second, 100.0)
    pacing.ended(second[0], 103.0)
    assert pacing.due == 109.0


def test_the_last_ones_are_carried_into_the_next_generation() -> None:
    pacing, first = asked(StragglerPolicy.carry(after=0.5, grace=0.0), 2)
    pacing.ended(first[1], 1.0)
    assert pacing.next(1.0, 4) == Tell((first[1],))
    assert pacing.next(1.0, 4) == Ask(2)
    second = [Ticket(1, 0), Ticket(1, 1)]
    pacing.asked(second, 1.0)
    assert pacing.under_way == [first[0], *second]
    pacing.ended(first[0], 2.0)
    assert pacing.next(2.0, 4) is None, "or ever more would be carried"
    pacing.ended(second[1], 3.0)
    assert pacing.next(3.0, 4) == Tell((first[0], second[1]))


def test_an_algorithm_that_has_nothing_to_ask_waits_for_what_is_carried() -> None:
    pacing, first = asked(StragglerPolicy.carry(after=0.5, grace=0.0), 2)
    pacing.ended(first[1], 1.0)
    assert pacing.next(1.0, 4) == Tell((first[1],))
    assert pacing.next(1.0, 4) == Ask(2)
    pacing.asked([], 1.0)
    assert pacing.next(1e9, 4) is None
    pacing.ended(first[0], 2.0)
    assert pacing.next(2.0, 4) == Tell((first[0],))


def test_a_generation_that_is_resumed_in_its_middle_has_its_grace_anew() -> None:
    """Saved right after an ask: it took the time since the machine was booted for that of the generation."""
    rule = StragglerPolicy.drop(after=0.5, grace=1.0)
    pacing, tickets = asked(rule, 4, now=1000.0)
    again = Generational(lambda: 4, rule)
    again.load_state_dict(pacing.state_dict())
    assert again.next(5000.0, 4) is None
    again.ended(tickets[0], 5001.0)
    assert again.due is None, "half of them are to be waited for"
    again.ended(tickets[1], 5002.0)
    assert again.due == 5004.0
    assert again.next(5004.0, 4) == CancelEvaluations((tickets[2], tickets[3]))


def test_evaluations_that_end_before_a_resumed_generation_has_a_start_give_no_time_to_drop_the_rest() -> None:
    rule = StragglerPolicy.drop(after=0.5, grace=1.0)
    pacing, tickets = asked(rule, 2, now=1000.0)
    again = Generational(lambda: 2, rule)
    again.load_state_dict(pacing.state_dict())
    again.ended(tickets[0], 5000.0)
    assert again.due is None
    assert again.next(5000.0, 4) == CancelEvaluations((tickets[1],)), "it began just now"


def test_a_share_of_an_odd_number_is_rounded_up_also_after_a_resumption() -> None:
    rule = StragglerPolicy.drop(after=0.5, grace=1.0)
    pacing, tickets = asked(rule, 5, now=1000.0)
    state = pacing.state_dict()
    for _ in range(2):  # the state of before is also restored where the generation went on meanwhile
        for ticket in tickets[:2]:
            pacing.ended(ticket, 1001.0)
        assert pacing.due is None, "2 of 5 are less than half of them"
        pacing.load_state_dict(state)
    assert pacing.next(5000.0, 4) is None
    for ticket in tickets[:3]:
        pacing.ended(ticket, 5001.0)
    assert pacing.due == 5002.0


def test_what_was_under_way_is_evaluated_again_after_a_resumption() -> None:
    pacing, first = asked(StragglerPolicy.carry(after=0.5, grace=0.0), 2)
    pacing.ended(first[1], 1.0)
    pacing.next(1.0, 4)
    again = Generational(lambda: 2, StragglerPolicy.carry(after=0.5, grace=0.0))
    again.load_state_dict(pacing.state_dict())
    assert again.under_way == [first[0]] and again.next(0.0, 4) == Ask(2)
