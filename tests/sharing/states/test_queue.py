"""Queues: each rule by itself, and any order of calls, deaths and ends of time against a plain list."""

from __future__ import annotations

import bisect
import queue
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.queue import QueueState
from ropewalk.sharing.states.waiting import CallOutcome, Waiter
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


def test_a_queue_is_at_rest_if_nothing_is_lent_and_only_readers_wait() -> None:
    state = QueueState(maxsize=1, joinable=True)
    desk = Desk(state)
    assert state.is_at_rest()
    reader = get(desk)
    assert state.is_at_rest()
    put(desk, 1)
    assert not state.is_at_rest(), "its reader may not have got it"
    desk.taken(reader)
    assert state.is_at_rest()
    joining = desk.call(state, "join", A)
    assert not state.is_at_rest()
    desk.time_over(joining)
    assert state.is_at_rest()
    put(desk, 2)
    assert state.is_at_rest()
    waiting = put(desk, 3)
    assert not state.is_at_rest()
    desk.time_over(waiting)
    assert state.is_at_rest()


def test_a_queue_at_rest_has_taken_back_what_was_leased() -> None:
    state, lot = QueueState(), Lot()
    desk = Desk(state)
    for number in range(4):
        put(desk, number)
    desk.taken(desk.call(state, "get", B, lot))
    lot.begun = 2
    assert state.is_at_rest()
    assert lot.closed_at == 2
    assert [desk.ask(state, "get", C) for _ in range(2)] == [2, 3]


def test_a_queue_is_not_at_rest_while_an_item_is_on_its_way_to_a_promised_place() -> None:
    state, lot = QueueState(maxsize=5), Lot()
    desk = Desk(state)
    promised = desk.call(state, "put", A, Parcel(0), lot)
    assert desk.end(promised) == 4
    lot.begun = 2
    assert not state.is_at_rest()
    assert lot.closed_at == 2, "no further item sets out"
    desk.ask(state, "put_many", A, [Parcel(1)])
    assert state.is_at_rest()
    unused = Lot()
    desk.call(state, "put", A, Parcel(2), unused)
    assert state.is_at_rest()
    assert unused.closed_at == 1
    assert state.leave()[0] and desk.ask(state, "empty", A)


def test_a_queue_that_is_given_up_goes_on_in_another_place() -> None:
    state, other = QueueState(joinable=True), QueueState(joinable=True)
    desk, beyond = Desk(state), Desk(other)
    for number in range(3):
        put(desk, number)
    desk.ask(state, "get", B)
    items, num_unfinished, getters = state.leave()
    assert ([item.label for item in items], num_unfinished, getters) == ([1, 2], 3, [])
    assert desk.ask(state, "join", A), "nothing is left here"
    other.enter(items, num_unfinished)
    joining = beyond.call(other, "join", A)
    assert [beyond.ask(other, "get", B) for _ in range(2)] == [1, 2]
    for _ in range(2):
        beyond.ask(other, "task_done", B)
    assert joining in beyond.waiting
    beyond.ask(other, "task_done", B)
    assert beyond.end(joining) is True
    waiting = [get(desk, who) for who in (B, C)]
    assert state.leave() == ([], 0, waiting)
    put(desk, "new")
    assert desk.ask(state, "qsize", A) == 1, "those that have waited do so in the other place"


def test_another_call_takes_the_place_of_one_that_reads() -> None:
    state = QueueState()
    desk = Desk(state)
    first, second = get(desk, B), get(desk, C)
    instead = Waiter(party("d"))
    assert state.pass_on(second, instead) == []
    put(desk, 1)
    assert desk.end(first) == 1
    assert [outcome.waiter for outcome in state.put(Waiter(A), Parcel(2)) if outcome.lent] == [instead]
    further = Waiter(party("e"))
    [outcome] = state.pass_on(instead, further)
    assert (outcome.waiter, outcome.value, outcome.lent) == (further, Parcel(2), True)
    state.give_up(instead, timed_out=False)
    assert desk.ask(state, "empty", A)
    state.give_up(further, timed_out=False)
    assert desk.ask(state, "get", A) == 2


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


def test_items_that_come_together_are_finished_one_by_one_and_each_join_ends_once() -> None:
    desk = filled(2, joinable=True)
    state = desk.states[0]
    first = desk.call(state, "join", A)
    desk.ask(state, "task_done", B)
    assert first in desk.waiting
    desk.ask(state, "task_done", B)
    assert desk.end(first) is True
    put(desk, 2)
    second = desk.call(state, "join", A)
    desk.ask(state, "task_done", B)
    assert desk.end(second) is True


def test_of_those_that_join_the_dead_hear_nothing_and_the_others_do() -> None:
    desk = filled(1, joinable=True)
    state = desk.states[0]
    dead, living = (desk.call(state, "join", who) for who in (B, C))
    desk.die("b")
    desk.ask(state, "task_done", A)
    assert desk.end(living) is True and dead not in desk.ended


def test_items_of_a_plain_queue_are_not_counted_as_unfinished() -> None:
    desk = filled(2)
    put(desk, 2)
    assert desk.ask(desk.states[0], "join", A) is True
    with pytest.raises(ValueError, match="called too many times"):
        desk.ask(desk.states[0], "task_done", A)


def test_a_reader_that_died_while_it_waited_is_given_nothing() -> None:
    desk = Desk(QueueState())
    waiters = [get(desk, who) for who in (B, C)]
    desk.die("b")
    put(desk, 1)
    assert desk.end(waiters[1]) == 1


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


@pytest.mark.parametrize(("size_bytes", "num"), [(8192, 32), (8200, 31), (8224, 31)])
def test_a_lot_holds_no_more_than_256_kib(size_bytes: int, num: int) -> None:
    desk = Desk(QueueState())
    desk.ask(desk.states[0], "put_many", A, [Parcel(number, size_bytes) for number in range(64)])
    assert len(get_lot(desk)[1]) == num


def test_lots_shrink_to_what_was_begun_of_them_and_grow_again() -> None:
    desk = filled(400)
    lot, _ = get_lot(desk, B)
    lot.begun += 3
    sizes: list[int] = []
    for _ in range(6):
        lot, items = get_lot(desk, C)
        sizes.append(len(items) - 1)
        lot.begun += sizes[-1]
    assert sizes == [3, 6, 12, 24, 48, 64]


def test_a_reader_that_begins_nothing_of_its_lot_gets_none_and_then_one_more_each_time() -> None:
    desk = filled(400)
    get_lot(desk, B)
    assert [len(get_lot(desk, B)[1]) - 1 for _ in range(2)] == [0, 1]
    assert [len(get_lot(desk, B)[1]) - 1 for _ in range(2)] == [0, 1], "the lot of one was not begun either"


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
    desk.die("c")
    assert lot.closed_at is None, "that was another one"
    desk.die("b")
    assert lot.closed_at == 3
    assert [desk.end(get(desk, A)) for _ in range(4)] == [0, 3, 4, 5]


def test_with_an_item_that_was_not_taken_comes_back_what_is_after_it() -> None:
    desk = filled(4)
    lot, waiter = Lot(), None
    waiter = desk.call(desk.states[0], "get", B, lot)
    desk.never_taken(waiter)
    assert lot.closed_at == 1
    assert get_lot(desk, B)[1][:2] == [0, 1]


def test_nobody_gets_a_lot_while_others_wait() -> None:
    desk = Desk(QueueState())
    first, second = Lot(), Lot()
    waiters = [desk.call(desk.states[0], "get", who, lot) for who, lot in ((A, first), (B, second))]
    desk.ask(desk.states[0], "put_many", C, [Parcel(number) for number in range(3)])
    assert [desk.end(waiter) for waiter in waiters] == [0, 1]
    assert (first.is_open, second.is_open) == (False, True)


def test_while_a_putter_waits_whoever_has_a_lot_says_when_he_begins_an_item() -> None:
    desk = Desk(QueueState(maxsize=3))
    for number in range(3):
        put(desk, number)
    lot, items = get_lot(desk)
    assert (items, lot.is_watched) == ([0, 1, 2], False)
    put(desk, 3)  # there is room where the first one was
    waiting = [put(desk, 4), put(desk, 5)]
    assert lot.is_watched
    lot.begun, lot.is_watched = lot.begun + 1, False  # one report each time it is watched
    desk._hear(desk.states[0].begun())
    assert (waiting[0] in desk.ended, waiting[1] in desk.waiting, lot.is_watched) == (True, True, True)


def test_a_putter_who_comes_just_after_an_item_was_begun_does_not_wait_to_hear_of_it() -> None:
    class BegunMeanwhile(Lot):
        def watch(self) -> None:
            super().watch()
            self.begun += 1

    desk = Desk(QueueState(maxsize=2))
    put(desk, 0)
    put(desk, 1)
    desk.call(desk.states[0], "get", B, BegunMeanwhile())
    put(desk, 2)
    assert put(desk, 3) in desk.ended
    assert desk.ask(desk.states[0], "qsize", A) == 2


# Room


def put_for_more(desk: Desk, label: object, who: Any = A) -> tuple[Lot, int | None]:
    """Put an item, and ask for room for more."""
    lot = Lot()
    return lot, desk.end(desk.call(desk.states[0], "put", who, Parcel(label), lot))


def test_a_lone_putter_gets_all_the_room_and_what_it_begins_counts_as_inside() -> None:
    desk = Desk(QueueState(maxsize=5))
    state = desk.states[0]
    lot, num = put_for_more(desk, 0)
    assert (num, lot.is_open) == (4, True)
    assert (desk.ask(state, "qsize", B), desk.ask(state, "full", B)) == (1, False)
    lot.begun += 4
    assert (desk.ask(state, "qsize", B), desk.ask(state, "full", B)) == (5, True)
    desk.ask(state, "put_many", A, [Parcel(number) for number in (1, 2, 3, 4)])
    assert (desk.ask(state, "qsize", B), desk.ask(state, "full", B)) == (5, True)
    assert [desk.end(get(desk)) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert (desk.ask(state, "qsize", B), desk.ask(state, "full", B)) == (0, False)


def test_another_putter_gets_the_places_that_were_not_begun_and_no_more() -> None:
    desk = Desk(QueueState(maxsize=4))
    lot, _ = put_for_more(desk, 0, A)
    lot.begun += 1
    assert desk.call(desk.states[0], "put", B, Parcel("b")) in desk.ended
    assert lot.closed_at == 2
    assert desk.call(desk.states[0], "put", B, Parcel("c")) in desk.ended
    waiter = desk.call(desk.states[0], "put", B, Parcel("d"))
    assert waiter in desk.waiting, "a place that was begun is filled, though its item has not come"
    desk.die("a")
    assert waiter in desk.ended, "and free again when it never comes"


@pytest.mark.parametrize("num_looks", range(8))
def test_a_place_that_is_begun_between_two_looks_is_not_given_twice(num_looks: int) -> None:
    class BegunMeanwhile(Lot):
        looks = 0

        @property
        def num_begun(self) -> int:
            if self.is_open and self.closed_at is None:
                self.looks += 1
                if self.looks > num_looks:
                    self.begun = 2
            return super().num_begun

    desk, lot = Desk(QueueState(maxsize=2)), BegunMeanwhile()
    desk.call(desk.states[0], "put", A, Parcel("a"), lot)
    other = desk.call(desk.states[0], "put", B, Parcel("b"))
    num_inside = 1 + (lot.num_begun - 1) + (other in desk.ended)
    assert num_inside <= 2


def test_whoever_waits_for_room_comes_before_room_for_others() -> None:
    desk = Desk(QueueState(maxsize=2))
    lots = [Lot() for _ in range(4)]
    waiters = [desk.call(desk.states[0], "put", A, Parcel(number), lot) for number, lot in enumerate(lots[:3])]
    waiters.append(desk.call(desk.states[0], "put", C, Parcel(3), lots[3]))
    get(desk)
    assert waiters[2] in desk.ended and waiters[3] in desk.waiting
    assert [lot.is_open for lot in lots] == [True, False, False, False]


def test_room_goes_to_those_who_wait_and_not_to_the_first_of_them_for_more() -> None:
    desk = Desk(QueueState(maxsize=3))
    for number in range(3):
        put(desk, number)
    reads, _ = get_lot(desk)
    put(desk, 3)
    waiters = [desk.call(desk.states[0], "put", C, Parcel(number), Lot()) for number in (4, 5)]
    reads.begun += 2
    desk._hear(desk.states[0].begun())
    assert [desk.end(waiter) for waiter in waiters] == [None, None]


def test_a_lot_that_comes_after_one_that_was_watched_is_watched_as_well() -> None:
    desk = Desk(QueueState(maxsize=3))
    for number in range(3):
        put(desk, number)
    first, _ = get_lot(desk)
    for number in range(3, 8):
        put(desk, number)
    assert first.is_watched
    first.begun += 1
    second, items = get_lot(desk)
    assert (items, len(desk.waiting), second.is_watched) == ([2, 3], 2, True)


def test_without_bounds_or_without_a_lot_there_is_no_room_to_speak_of() -> None:
    assert put_for_more(Desk(QueueState()), 0)[1] is None
    desk = Desk(QueueState(maxsize=1))
    assert put_for_more(desk, 0)[1] is None
    desk = Desk(QueueState(maxsize=9))
    assert desk.end(put(desk, 0)) is None


def test_rooms_shrink_to_what_was_used_of_them_and_grow_again() -> None:
    desk = Desk(QueueState(maxsize=65))
    lot, num = put_for_more(desk, 0, A)
    assert num == 64
    lot.begun += 3
    desk.call(desk.states[0], "put", B, Parcel(1))  # finds no other room
    sizes: list[int] = []
    for number in range(4):
        lot, num = put_for_more(desk, number, A)
        assert num
        sizes.append(num)
        lot.begun += num
    assert sizes == [3, 6, 12, 24]


def test_room_of_which_nothing_was_used_is_followed_by_room_for_one() -> None:
    desk = Desk(QueueState(maxsize=9))
    assert put_for_more(desk, 0, A)[1] == 8
    for number in range(8):
        assert desk.call(desk.states[0], "put", B, Parcel(number)) in desk.ended
    assert desk.call(desk.states[0], "put", B, Parcel(8)) in desk.waiting
    for _ in range(7):
        get(desk, C)
    sizes: list[int | None] = []
    for number in range(2):
        lot, num = put_for_more(desk, number, A)
        sizes.append(num)
        lot.begun += num or 0
        get(desk, C)
    assert sizes == [1, 2]


def test_room_whose_putter_has_written_no_number_yet_is_room_of_which_nothing_was_begun() -> None:
    desk = Desk(QueueState(maxsize=3))
    lot, num = put_for_more(desk, 0, A)
    lot.begun = 0
    assert num == 2
    waiters = [desk.call(desk.states[0], "put", B, Parcel(number)) for number in range(3)]
    assert [waiter in desk.ended for waiter in waiters] == [True, True, False]


def test_what_has_arrived_in_a_promised_place_leaves_it_free_when_it_is_taken() -> None:
    desk = Desk(QueueState(maxsize=5))
    lot, _ = put_for_more(desk, 0, A)
    lot.begun += 2
    desk.ask(desk.states[0], "put_many", A, [Parcel(1), Parcel(2)])
    waiters = [desk.call(desk.states[0], "put", B, Parcel(number)) for number in range(3)]
    assert [waiter in desk.ended for waiter in waiters] == [True, True, False]


def test_what_arrives_is_counted_in_one_of_its_senders_rooms() -> None:
    desk = Desk(QueueState(maxsize=9))
    for number in range(2):
        lot, _ = put_for_more(desk, number, A)
        lot.begun += 1
    assert desk.ask(desk.states[0], "qsize", B) == 4
    desk.ask(desk.states[0], "put_many", A, [Parcel(2)])
    assert desk.ask(desk.states[0], "qsize", B) == 4
    desk.ask(desk.states[0], "put_many", A, [Parcel(3)])
    assert desk.ask(desk.states[0], "qsize", B) == 4


@dataclass
class Sender:
    """What a process that was given room has done with it."""

    lot: Lot
    num: int
    under_way: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def num_left(self) -> int:
        return self.num - self.lot.begun + 1 if self.lot.closed_at is None else 0


class AnyOrder(RuleBasedStateMachine):
    """The model: a sorted list of the numbers that may be read, and who waits in which order."""

    @initialize(maxsize=st.sampled_from([0, 1, 2, 5]))
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
        self.room_lots: dict[Waiter, Lot] = {}
        self.senders: dict[str, Sender] = {}  # by process
        self.told_of_begun = True
        self.getters: dict[Waiter, None] = {}
        self.births = 0
        self.counts: dict[int, int] = {}
        self.processes = [self.born() for _ in range(3)]

    def born(self) -> int:
        self.births += 1
        return self.births

    def heard(self, outcome: CallOutcome) -> None:
        waiter = outcome.waiter
        if outcome.lent:
            assert waiter is next(iter(self.getters)), "not the first of those that wait"
            assert self.labels[self.inside[0]] == outcome.value.label, "not the first item"
            del self.getters[waiter]
            self.lent[waiter] = self.inside.pop(0)
            if outcome.more:
                assert not self.getters, "others wait"
                assert self.loan is None, "a second lot"
                more, self.inside = self.inside[: len(outcome.more)], self.inside[len(outcome.more) :]
                assert [self.labels[number] for number in more] == [item.label for item in outcome.more]
                self.loan = waiter, self.lots[waiter], more
        elif waiter in self.putters and outcome.error is None:
            assert waiter is next(iter(self.putters)), "not the first of those that wait"
            self.inside.append(len(self.labels))
            self.labels.append(self.putters.pop(waiter))
            assert not self.maxsize or self.num_inside + self.num_promised <= self.maxsize, "let in without room"
            if outcome.value:
                assert not self.putters, "others wait"
                self.senders[waiter.party.process] = Sender(self.room_lots[waiter], outcome.value)
                assert self.num_inside + self.num_promised <= self.maxsize, "more than there is"

    @property
    def num_inside(self) -> int:
        num_under_way = sum(len(sender.under_way) for sender in self.senders.values())
        return len(self.inside) + len(self.loan[2] if self.loan else []) + num_under_way

    @property
    def num_promised(self) -> int:
        return sum(sender.num_left for sender in self.senders.values())

    @rule(of=st.integers(0, 2), wants_room=st.booleans())
    def put(self, of: int, wants_room: bool) -> None:
        process = self.processes[of]
        self.arrive(of, 1000)  # what was sent before comes before
        sender = self.senders.pop(str(process), None)
        if sender and wants_room:
            sender.lot.close()  # its place is given out again
        self.counts[process] = count = self.counts.get(process, 0) + 1
        waiter = Waiter(party(str(process)))
        self.putters[waiter] = (process, count)
        self.room_lots[waiter] = Lot()
        lots = [self.room_lots[waiter]] * wants_room
        self.made(waiter, self.state.put(waiter, Parcel((process, count)), *lots))

    @rule(of=st.integers(0, 2))
    def fill_room(self, of: int) -> None:
        process = self.processes[of]
        sender = self.senders.get(str(process))
        if sender and sender.num_left:
            sender.lot.begun += 1
            self.counts[process] = count = self.counts.get(process, 0) + 1
            sender.under_way.append((process, count))

    @rule(of=st.integers(0, 2), num=st.integers(1, 3))
    def arrive(self, of: int, num: int) -> None:
        sender = self.senders.get(str(self.processes[of]))
        if sender and sender.under_way:
            labels, sender.under_way = sender.under_way[:num], sender.under_way[num:]
            for label in labels:
                self.inside.append(len(self.labels))
                self.labels.append(label)
            waiter = Waiter(party(str(self.processes[of])))
            self.made(waiter, self.state.put_many(waiter, [Parcel(label) for label in labels]))

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
        if lot.is_watched:
            lot.is_watched, self.told_of_begun = False, False

    @precondition(lambda self: not self.told_of_begun)
    @rule()
    def tell_of_begun(self) -> None:
        self.told_of_begun = True
        self.desk._hear(self.state.begun())

    def take_back(self) -> None:
        if self.loan:
            self.inside = sorted([*self.inside, *self.loan[2]])
            self.loan = None

    def made(self, waiter: Waiter, outcomes: list[CallOutcome]) -> None:
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
        self.senders.pop(gone, None)
        self.putters = {waiter: label for waiter, label in self.putters.items() if waiter.party.process != gone}
        self.getters = {waiter: None for waiter in self.getters if waiter.party.process != gone}
        self.desk.die(gone)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        assert not (self.getters and self.inside)
        if self.told_of_begun:
            assert not (self.putters and (not self.maxsize or self.num_inside < self.maxsize))
        assert not (self.putters and self.num_promised), "room for others while somebody waits for it"
        assert set(self.desk.waiting) == {*self.putters, *self.getters}

    @invariant()
    def each_item_is_in_one_place(self) -> None:
        at_reader = self.loan[2] if self.loan else []
        places = [*self.inside, *at_reader, *self.lent.values(), *self.taken]
        assert sorted(places) == list(range(len(self.labels)))
        assert self.desk.ask(self.state, "qsize", A) == self.num_inside
        assert self.desk.ask(self.state, "full", A) == (0 < self.maxsize <= self.num_inside)

    @invariant()
    def what_is_at_a_reader_keeps_nobody_waiting(self) -> None:
        assert not (self.loan and self.loan[2] and self.getters)

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for of in range(3):
            self.death(of)
        left = Desk(self.state)
        assert left.ask(self.state, "qsize", A) == len(self.inside), "somebody dead still counts"
        rest = [left.ask(self.state, "get", A) for _ in self.inside]
        assert rest == [self.labels[number] for number in range(len(self.labels)) if number not in self.taken]


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
