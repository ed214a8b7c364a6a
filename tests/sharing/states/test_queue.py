"""Queues: each rule by itself, and any order of calls, deaths and ends of time against a plain list."""

from __future__ import annotations

import bisect
import queue
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.queue import QueueState
from ropewalk.sharing.states.waiting import Outcome, Waiter
from tests.sharing.states.desk import Desk, Lot, Parcel, party

A, B, C = party("a"), party("b"), party("c")


def put(desk: Desk, label: object) -> Waiter:
    return desk.call(desk.states[0], "put", A, Parcel(label))


def get(desk: Desk, who: Any = B) -> Waiter:
    return desk.call(desk.states[0], "get", who)


def test_items_come_out_in_the_order_in_which_they_were_put_in() -> None:
    desk = Desk(QueueState())
    for number in range(3):
        put(desk, number)
    assert [desk.end(get(desk)) for _ in range(3)] == [0, 1, 2]


def test_readers_of_all_processes_are_served_first_come_first_served() -> None:
    desk = Desk(QueueState())
    readers = [get(desk, who) for who in (A, B, C, B)]
    for number in range(4):
        put(desk, number)
    assert [desk.end(reader) for reader in readers] == [0, 1, 2, 3]


def test_a_full_queue_lets_putters_wait_in_their_order() -> None:
    desk = Desk(QueueState(maxsize=1))
    first, second, third = (put(desk, number) for number in range(3))
    assert first in desk.ended
    assert set(desk.waiting) == {second, third}
    assert desk.end(get(desk)) == 0
    assert second in desk.ended
    assert set(desk.waiting) == {third}


def test_time_over_is_queue_empty_for_readers_and_queue_full_for_putters() -> None:
    desk = Desk(QueueState(maxsize=1))
    reader = get(desk)
    desk.time_over(reader)
    with pytest.raises(queue.Empty):
        desk.end(reader)
    put(desk, 1)
    putter = put(desk, 2)
    desk.time_over(putter)
    with pytest.raises(queue.Full):
        desk.end(putter)
    assert desk.end(get(desk)) == 1
    assert desk.ask(desk.states[0], "empty", A)


def test_an_item_that_its_reader_did_not_take_is_the_next_one_again() -> None:
    desk = Desk(QueueState())
    for number in range(4):
        put(desk, number)
    first, second = get(desk, B), get(desk, C)
    desk.never_taken(second)
    desk.die("b")
    assert first in desk.ended
    assert [desk.end(get(desk, A)) for _ in range(4)] == [0, 1, 2, 3]


def test_a_waiting_reader_gets_what_a_dead_one_had_not_taken() -> None:
    desk = Desk(QueueState())
    put(desk, "it")
    get(desk, B)
    waiting = get(desk, C)
    desk.die("b")
    assert desk.end(waiting) == "it"


def test_what_was_taken_does_not_come_back() -> None:
    desk = Desk(QueueState())
    put(desk, "it")
    desk.taken(get(desk, B))
    desk.die("b")
    assert desk.ask(desk.states[0], "empty", A)


def test_sizes_count_what_is_not_lent() -> None:
    state = QueueState(maxsize=2)
    desk = Desk(state)
    put(desk, 1)
    put(desk, 2)
    assert (desk.ask(state, "qsize", A), desk.ask(state, "empty", A), desk.ask(state, "full", A)) == (2, False, True)
    lent = get(desk)
    assert (desk.ask(state, "qsize", A), desk.ask(state, "full", A)) == (1, False)
    put(desk, 3)
    desk.never_taken(lent)
    assert (desk.ask(state, "qsize", A), desk.ask(state, "full", A)) == (3, True)


def test_a_queue_without_a_size_is_never_full() -> None:
    desk = Desk(QueueState(maxsize=-1))
    for number in range(100):
        put(desk, number)
    assert not desk.ask(desk.states[0], "full", A)


def test_join_waits_until_each_item_is_done() -> None:
    state = QueueState(joinable=True)
    desk = Desk(state)
    assert desk.ask(state, "join", A)
    put(desk, 1)
    put(desk, 2)
    joining = desk.call(state, "join", A)
    get(desk)
    desk.never_taken(get(desk))  # What comes back is not unfinished a second time.
    get(desk)
    desk.ask(state, "task_done", B)
    assert joining in desk.waiting
    desk.ask(state, "task_done", B)
    assert desk.end(joining)
    with pytest.raises(ValueError, match="task_done\\(\\) called too many times"):
        desk.ask(state, "task_done", B)


def test_join_ends_with_false_when_the_time_is_over() -> None:
    state = QueueState(joinable=True)
    desk = Desk(state)
    put(desk, 1)
    joining = desk.call(state, "join", A)
    desk.time_over(joining)
    assert desk.end(joining) is False


def test_an_item_that_waits_for_room_is_not_yet_unfinished_and_goes_with_its_putter() -> None:
    state = QueueState(maxsize=1, joinable=True)
    desk = Desk(state)
    put(desk, 1)
    put(desk, 2)
    desk.die("a")
    assert desk.end(get(desk)) == 1
    desk.ask(state, "task_done", B)
    assert desk.ask(state, "join", B)
    assert desk.ask(state, "empty", B)


def get_lot(desk: Desk, who: Any = B) -> tuple[Lot, list[object]]:
    """The lot of a call, and the items that came with it: the first is its value."""
    lot = Lot()
    waiter = desk.call(desk.states[0], "get", who, lot)
    outcome = desk.ended[waiter]
    return lot, [item.label for item in (outcome.value, *outcome.more)]


def filled(num: int, **arguments: Any) -> Desk:
    desk = Desk(QueueState(**arguments))
    desk.ask(desk.states[0], "put_many", A, [Parcel(number) for number in range(num)])
    return desk


def test_a_reader_gets_a_lot_of_what_is_there() -> None:
    desk = filled(5)
    lot, items = get_lot(desk)
    assert (lot.is_open, items) == (True, [0, 1, 2, 3, 4])
    lot, items = get_lot(filled(1))
    assert (lot.is_open, items) == (False, [0])
    assert len(get_lot(filled(100))[1]) == 65


def test_what_was_not_begun_goes_to_whoever_asks_next() -> None:
    desk = filled(6)
    lot, _ = get_lot(desk, B)
    lot.begun = 3
    assert desk.end(get(desk, C)) == 3
    assert desk.end(get(desk, B)) == 4
    assert get_lot(desk, B)[1] == [5]


def test_a_lot_counts_as_inside_until_it_is_begun() -> None:
    desk = filled(4)
    state = desk.states[0]
    lot, _ = get_lot(desk)
    assert (desk.ask(state, "qsize", A), desk.ask(state, "empty", A)) == (3, False)
    lot.begun = 4
    assert (desk.ask(state, "qsize", A), desk.ask(state, "empty", A)) == (0, True)


def test_a_dead_reader_leaves_what_it_had_not_begun() -> None:
    desk = filled(6)
    lot, _ = get_lot(desk, B)
    lot.begun = 3  # its first item has not even arrived
    desk.die("b")
    assert [desk.end(get(desk, A)) for _ in range(4)] == [0, 3, 4, 5]


def test_with_an_item_that_was_not_taken_comes_back_what_is_after_it() -> None:
    desk = filled(4)
    lot, waiter = Lot(), None
    waiter = desk.call(desk.states[0], "get", B, lot)
    desk.never_taken(waiter)
    assert lot.closed_at == 1
    assert get_lot(desk, B)[1][:2] == [0, 1]


def test_nobody_gets_a_lot_while_others_wait_or_putters_do() -> None:
    desk = Desk(QueueState())
    first, second = Lot(), Lot()
    waiters = [desk.call(desk.states[0], "get", who, lot) for who, lot in ((A, first), (B, second))]
    desk.ask(desk.states[0], "put_many", C, [Parcel(number) for number in range(3)])
    assert [desk.end(waiter) for waiter in waiters] == [0, 1]
    assert (first.is_open, second.is_open) == (False, True)
    bounded = Desk(QueueState(maxsize=3))
    for number in range(3):
        put(bounded, number)
    assert get_lot(bounded)[1] == [0]


def test_what_is_large_or_a_file_travels_by_itself() -> None:
    desk = Desk(QueueState())
    parcels = [Parcel(0, is_light=False), Parcel(1), Parcel(2), Parcel(3, is_light=False), Parcel(4, 200_000)]
    parcels += [Parcel(5, 200_000), Parcel(6)]
    desk.ask(desk.states[0], "put_many", A, parcels)
    assert [get_lot(desk)[1] for _ in range(1)] == [[0]]
    lot, items = get_lot(desk)
    assert items == [1, 2]
    lot.begun = 2
    assert get_lot(desk)[1] == [3]
    assert get_lot(desk)[1] == [4]
    assert get_lot(desk)[1] == [5, 6]


def test_lots_grow_when_they_are_used_and_shrink_when_others_ask() -> None:
    desk = filled(1000)
    lot, _ = get_lot(desk, B)
    assert len(get_lot(desk, C)[1]) == 1  # nothing of the lot before was begun
    lot, items = get_lot(desk, B)
    sizes: list[int] = []
    for _ in range(10):
        lot.begun = len(items)
        lot, items = get_lot(desk, B)
        sizes.append(len(items) - 1)
    assert sizes == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64]


class AnyOrder(RuleBasedStateMachine):
    """The model: a sorted list of the numbers that may be read, and who waits in which order."""

    @initialize(maxsize=st.sampled_from([0, 1, 2]))
    def begin(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.state = QueueState(maxsize, joinable=True)
        self.desk = Desk(self.state, on_outcome=self.heard)
        self.inside: list[int] = []  # By their numbers in the queue.
        self.labels: list[tuple[int, int]] = []  # (putter, its count), by number
        self.lent: dict[Waiter, int] = {}
        self.lots: dict[Waiter, Lot] = {}
        self.loan: tuple[Waiter, Lot, list[int]] | None = None  # what came after the first item, by number
        self.taken: list[int] = []
        self.putters: dict[Waiter, tuple[int, int]] = {}
        self.getters: dict[Waiter, None] = {}
        self.births = 0
        self.counts: dict[int, int] = {}
        self.processes = [self.born() for _ in range(3)]

    def born(self) -> int:
        self.births += 1
        return self.births

    def heard(self, outcome: Outcome) -> None:
        waiter = outcome.waiter
        if outcome.lent:
            assert waiter is next(iter(self.getters)), "not the first of those that wait"
            assert self.labels[self.inside[0]] == outcome.value.label, "not the first item"
            del self.getters[waiter]
            self.lent[waiter] = self.inside.pop(0)
            if outcome.more:
                assert not self.maxsize, "putters would wait"
                assert not self.getters, "others wait"
                assert self.loan is None, "a second lot"
                more, self.inside = self.inside[: len(outcome.more)], self.inside[len(outcome.more) :]
                assert [self.labels[number] for number in more] == [item.label for item in outcome.more]
                self.loan = waiter, self.lots[waiter], more
        elif waiter in self.putters and outcome.error is None:
            assert waiter is next(iter(self.putters)), "not the first of those that wait"
            self.inside.append(len(self.labels))
            self.labels.append(self.putters.pop(waiter))

    @rule(of=st.integers(0, 2))
    def put(self, of: int) -> None:
        process = self.processes[of]
        self.counts[process] = count = self.counts.get(process, 0) + 1
        waiter = Waiter(party(str(process)))
        self.putters[waiter] = (process, count)
        self.made(waiter, self.state.put(waiter, Parcel((process, count))))

    @precondition(lambda self: not self.maxsize)
    @rule(of=st.integers(0, 2), num=st.integers(1, 5))
    def put_many(self, of: int, num: int) -> None:
        process = self.processes[of]
        waiter, parcels = Waiter(party(str(process))), []
        for _ in range(num):
            self.counts[process] = count = self.counts.get(process, 0) + 1
            parcels.append(Parcel((process, count)))
            self.inside.append(len(self.labels))
            self.labels.append((process, count))
        self.made(waiter, self.state.put_many(waiter, parcels))

    @rule(of=st.integers(0, 2), takes_lots=st.booleans())
    def get(self, of: int, takes_lots: bool) -> None:
        self.take_back()
        waiter = Waiter(party(str(self.processes[of])))
        self.getters[waiter] = None
        self.lots[waiter] = Lot()
        self.made(waiter, self.state.get(waiter, *[self.lots[waiter]] * takes_lots))

    @precondition(lambda self: self.loan and self.loan[2])
    @rule()
    def begin_next_of_lot(self) -> None:
        assert self.loan
        _, lot, left = self.loan
        assert lot.closed_at is None
        lot.begun += 1
        self.taken.append(left.pop(0))

    def take_back(self) -> None:
        if self.loan:
            self.inside = sorted([*self.inside, *self.loan[2]])
            self.loan = None

    def made(self, waiter: Waiter, outcomes: list[Outcome]) -> None:
        self.desk.waiting[waiter] = self.state
        self.desk._hear(outcomes)

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), arrives=st.booleans())
    def end_of_loan(self, data: st.DataObject, arrives: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.lent)))
        number = self.lent.pop(waiter)
        if arrives:
            self.taken.append(number)
            self.desk.taken(waiter)
        else:
            bisect.insort(self.inside, number)
            if self.loan and self.loan[0] is waiter:
                self.take_back()
            self.desk.never_taken(waiter)

    @precondition(lambda self: self.putters or self.getters)
    @rule(data=st.data(), timed_out=st.booleans())
    def end_of_patience(self, data: st.DataObject, timed_out: bool) -> None:
        waiter = data.draw(st.sampled_from([*self.putters, *self.getters]))
        self.putters.pop(waiter, None)
        self.getters.pop(waiter, None)
        if timed_out:
            self.desk.time_over(waiter)
            with pytest.raises((queue.Empty, queue.Full)):
                self.desk.end(waiter)
        else:
            self.desk.cancel(waiter)

    @rule(of=st.integers(0, 2))
    def death(self, of: int) -> None:
        gone, self.processes[of] = str(self.processes[of]), self.born()
        for waiter in [waiter for waiter in self.lent if waiter.party.process == gone]:
            bisect.insort(self.inside, self.lent.pop(waiter))
        if self.loan and self.loan[0].party.process == gone:
            self.take_back()
        self.putters = {waiter: label for waiter, label in self.putters.items() if waiter.party.process != gone}
        self.getters = {waiter: None for waiter in self.getters if waiter.party.process != gone}
        self.desk.die(gone)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        assert not (self.getters and self.inside)
        assert not (self.putters and (not self.maxsize or len(self.inside) < self.maxsize))
        assert set(self.desk.waiting) == {*self.putters, *self.getters}

    @invariant()
    def each_item_is_in_one_place(self) -> None:
        at_reader = self.loan[2] if self.loan else []
        places = [*self.inside, *at_reader, *self.lent.values(), *self.taken]
        assert sorted(places) == list(range(len(self.labels)))
        assert self.desk.ask(self.state, "qsize", A) == len(self.inside) + len(at_reader)

    @invariant()
    def what_is_at_a_reader_keeps_nobody_waiting(self) -> None:
        assert not (self.loan and self.loan[2] and self.getters)

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for of in range(3):
            self.death(of)
        left = Desk(self.state)
        rest = [left.ask(self.state, "get", A) for _ in self.inside]
        assert rest == [self.labels[number] for number in range(len(self.labels)) if number not in self.taken]


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
