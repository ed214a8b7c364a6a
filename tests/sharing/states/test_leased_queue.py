"""A line of items: whatever is lent, taken and given back, each item is there once, in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ropewalk.sharing.states.leased_queue import LeasedQueue
from ropewalk.sharing.states.waiting import CallOutcome, SizedItem, Waiter
from tests.sharing.states.desk import Parcel, party


def line_of(*sizes: int, heavy: tuple[int, ...] = ()) -> LeasedQueue:
    line = LeasedQueue()
    for label, size in enumerate(sizes):
        line.append(Parcel(label, size, label not in heavy))
    return line


def labels(entries: Iterable[tuple[int, Any]]) -> list[Any]:
    return [item.label for _, item in entries]


@pytest.mark.parametrize(
    ("most", "most_bytes", "heavy", "expected"),
    [
        (9, 99, (), [0, 1, 2]),
        (2, 99, (), [0, 1]),
        (9, 6, (), [0, 1, 2]),  # 1 + 2 + 3: as many bytes as that are still allowed
        (9, 5, (), [0, 1]),
        (9, 0, (), []),
        (9, 99, (0,), []),
        (9, 99, (1,), [0]),  # those behind a heavy one wait for it
        (0, 99, (), []),
    ],
)
def test_what_is_taken_are_the_first_that_are_light_and_fit(
    most: int, most_bytes: int, heavy: tuple[int, ...], expected: list[int]
) -> None:
    line = line_of(1, 2, 3, heavy=heavy)
    taken = line.take(most, most_bytes)
    assert labels(taken) == expected
    assert (len(line), line.size_bytes) == (3 - len(expected), 6 - sum(label + 1 for label in expected))
    line.put_back(taken)
    assert labels(line.take(9, 99) if not heavy else []) == ([0, 1, 2] if not heavy else [])
    if heavy:
        assert [line.lend(Waiter(party("a"))).value.label for _ in range(3)] == [0, 1, 2]


def test_an_item_without_bytes_fits_always() -> None:
    line = line_of(5, 0, 0)
    assert labels(line.take(3, 5)) == [0, 1, 2]


def test_what_is_cleared_does_not_come_back() -> None:
    line, waiter = line_of(1, 2, 3), Waiter(party("a"))
    line.lend(waiter)
    assert line.num_lent == 1
    line.clear()
    assert (len(line), line.num_lent, line.size_bytes) == (0, 0, 0)
    assert not line.give_back(waiter)


def test_an_item_that_is_lent_may_be_passed_on_to_another_call() -> None:
    line, first, other = line_of(1, 2, 3), Waiter(party("a")), Waiter(party("b"))
    item = line.lend(first).value
    assert line.pass_on(first, other) is item
    assert line.pass_on(first, other) is None, "it has it no more"
    assert (line.num_lent, len(line)) == (1, 2)
    assert not line.give_back(first)
    line.give_back_all_of("b")
    assert (line.num_lent, [each.label for each in line.items]) == (0, [0, 1, 2])  # type: ignore[attr-defined]


def test_all_that_is_not_lent_can_be_taken_and_what_is_lent_still_comes_back() -> None:
    line, waiter = line_of(1, 2, 3, heavy=(1,)), Waiter(party("a"))
    line.lend(waiter)
    assert [each.label for each in line.items] == [1, 2]  # type: ignore[attr-defined]
    entries = line.take_all()
    assert labels(entries) == [1, 2]
    assert (len(line), line.size_bytes, line.num_lent) == (0, 0, 1)
    assert line.give_back(waiter)
    line.put_back(entries)
    assert [line.lend(Waiter(party("a"))).value.label for _ in range(3)] == [0, 1, 2]


class Lines(RuleBasedStateMachine):
    """A line against a list of numbers in which everything has its place for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.line = LeasedQueue()
        self.inside: list[int] = []
        self.lent: dict[Waiter, int] = {}
        self.out: list[Sequence[tuple[int, SizedItem]]] = []
        self.num = 0

    @rule(size=st.integers(0, 5))
    def append(self, size: int) -> None:
        self.line.append(Parcel((self.num, size), size))
        self.inside.append(self.num)
        self.num += 1

    @precondition(lambda self: self.inside)
    @rule(process=st.sampled_from("ab"))
    def lend(self, process: str) -> None:
        waiter = Waiter(party(process))
        outcome = self.line.lend(waiter)
        self.lent[waiter] = self.inside.pop(0)
        assert outcome == CallOutcome(waiter, outcome.value, lent=True) and outcome.value.label[0] == self.lent[waiter]

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), comes_back=st.booleans())
    def hear_of_a_loan(self, data: st.DataObject, comes_back: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.lent)))
        number = self.lent.pop(waiter)
        if comes_back:
            assert self.line.give_back(waiter)
            self.inside = sorted([*self.inside, number])
        else:
            self.line.taken(waiter)
        assert not self.line.give_back(waiter)

    @rule(process=st.sampled_from("ab"))
    def lose_a_process(self, process: str) -> None:
        self.line.give_back_all_of(process)
        gone = [waiter for waiter in self.lent if waiter.party.process == process]
        self.inside = sorted([*self.inside, *(self.lent.pop(waiter) for waiter in gone)])

    @rule(most=st.integers(0, 4))
    def take(self, most: int) -> None:
        entries = self.line.take(most, 1 << 30)
        assert [number for number, _ in labels(entries)] == self.inside[:most]
        self.out.append(entries)
        del self.inside[:most]

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        entries = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.line.put_back(entries)
        self.inside = sorted([*self.inside, *(number for number, _ in labels(entries))])

    @invariant()
    def counts_are_right(self) -> None:
        assert len(self.line) == len(self.inside) and self.line.num_lent == len(self.lent)
        assert self.line.size_bytes == sum(size for _, size in labels(self.line._items))


TestLines = Lines.TestCase


@given(order=st.permutations(range(5)))
def test_in_whatever_order_loans_come_back_the_line_is_as_it_was(order: list[int]) -> None:
    line, waiters = line_of(1, 1, 1, 1, 1), [Waiter(party("a")) for _ in range(5)]
    for waiter in waiters:
        line.lend(waiter)
    for index in order:
        assert line.give_back(waiters[index])
    assert labels(line.take(9, 9)) == [0, 1, 2, 3, 4]
