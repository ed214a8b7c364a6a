"""A queue in shared memory: what becomes of items and calls, in any order of events, kills and interrupts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.sharing import queue_ring
from ropewalk.sharing.arena import ITEM_BYTES, DepotArena
from ropewalk.sharing.queue_memory import (
    CALL,
    COUNT_AT,
    COUNTS,
    GET,
    JOIN,
    JOINED,
    PUT,
    RUN,
    QueueRing,
    opened,
    sealed,
)
from ropewalk.sharing.queue_ring import ELSEWHERE, MOST_BYTES, OTHER, REFUSED, WAITS, Hand, RingCall
from ropewalk.sharing.record_words import (
    FINISHED,
    GETS,
    PLACE_BITS,
    PLACES,
    PUTS,
    PUTTERS,
    PUTTERS_RING,
    QUEUE,
    RING,
    RING_LENGTH,
)
from ropewalk.sharing.ringed_queue import give_back, seize
from tests.sharing.small_queue import a_ring, contents
from tests.sharing.small_queue import small_memory as small_memory


def test_what_becomes_of_a_call_is_told_from_the_word_of_another_one() -> None:
    outcomes = {WAITS, REFUSED, ELSEWHERE, queue_ring._AGAIN}
    assert len(outcomes) == 4
    assert max(outcomes) < 0


def test_items_up_to_a_size_are_kept_here(arena: DepotArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueRing, "num_cells", ITEM_BYTES // 8)
    ring = a_ring(arena)
    assert queue_ring.put(ring, bytes(MOST_BYTES), 1) == 0
    assert queue_ring.put(ring, bytes(MOST_BYTES + 1), 1) == ELSEWHERE
    assert contents(ring)[0] == [bytes(MOST_BYTES)]


def test_the_memory_is_used_up_to_its_last_cell(arena: DepotArena, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of eight bytes has two cells; one cell is free while items go round, which tells full from empty."""
    ring = a_ring(arena)
    items = [b"item%4d" % number for number in range(12)]
    assert [queue_ring.put(ring, item, 1) for item in items[:6]] == [0] * 5 + [ELSEWHERE]
    assert contents(ring)[0] == items[:5]
    hand: Hand = [None]
    assert [queue_ring.get(ring, hand), queue_ring.put(ring, items[5], 1)] == [0, ELSEWHERE]
    assert [queue_ring.get(ring, hand) for _ in range(2)] == [0] * 2
    assert [queue_ring.put(ring, item, 1) for item in items[5:8]] == [0] * 2 + [ELSEWHERE]
    assert contents(ring)[0] == items[3:7]
    assert queue_ring.put(ring, b"", 1) == 0
    assert queue_ring.put(ring, b"", 1) == ELSEWHERE
    for expected in (*items[3:7], b""):
        assert queue_ring.get(ring, hand) == 0
        assert hand == [(expected, 1)]
    # Just behind the last cell there is nothing that could say that items go round.
    ring.num_cells = len(ring.headers)
    ring.words[GETS], ring.words[PUTS] = ring.num_cells - 4, 1 << COUNT_AT | ring.num_cells - 2
    ring.write(ring.num_cells - 4, b"one", 1)
    assert [queue_ring.put(ring, item, 1) for item in (b"two", b"three")] == [0, 0]
    for expected in (b"one", b"two", b"three"):
        assert queue_ring.get(ring, hand) == 0
        assert hand == [(expected, 1)]


def test_a_call_looks_at_those_that_wait_only_where_one_of_them_is_to_be_woken(
    arena: DepotArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, hand, number_of_looks = a_ring(arena, 4), Hand([None]), list[int]()
    for name in ("_turn_to_put", "_get_in_turn", "_next_putter"):
        original = getattr(queue_ring, name)
        monkeypatch.setattr(
            queue_ring, name, lambda *args, original=original: number_of_looks.append(0) or original(*args)
        )

    def num_looks(call: Callable[[], int]) -> int:
        number_of_looks.clear()
        assert call() >= 0
        return len(number_of_looks)

    def put() -> int:
        return queue_ring.put(ring, b"item", 1)

    def get() -> int:
        return queue_ring.get(ring, hand)

    assert [num_looks(call) for call in (put, put, put, get, put)] == [0] * 5
    assert [queue_ring.put(ring, b"", 1) for _ in range(2)] == [0, REFUSED], "it is full"
    assert queue_ring.put(ring, b"5", 1, RingCall(1, 0, PUT)) == WAITS
    assert queue_ring.join(ring, RingCall(2, 0, JOIN)) == WAITS
    assert [num_looks(get) for _ in range(3)] == [1, 1, 0], "there is room for all that wait, who were woken"
    assert contents(ring)[0] == [b""]
    queue_ring.drop(ring, 1)
    queue_ring.drop(ring, 2)
    assert num_looks(get) == 0
    getters = [RingCall(1, number, GET) for number in range(2)]
    assert [queue_ring.get(ring, hand, call) for call in getters] == [WAITS] * 2
    assert [num_looks(put), num_looks(put), num_looks(put)] == [1, 1, 0], "each has an item"


@pytest.mark.parametrize("what", [GET, PUT, JOIN])
def test_a_call_that_was_dropped_is_made_by_the_depot(arena: DepotArena, what: int) -> None:
    def attempt(call: RingCall) -> int:
        if what == GET:
            return queue_ring.get(ring, [None], call)
        return queue_ring.put(ring, b"more", 1, call) if what == PUT else queue_ring.join(ring, call)

    ring = a_ring(arena, 1)
    assert what == GET or queue_ring.put(ring, b"item", 1) == 0
    for num_before in range(3):
        calls = [RingCall(3 + number, 7, what) for number in range(num_before + 1)]
        assert [attempt(call) for call in calls] == [WAITS] * len(calls)
        assert [attempt(call) for call in calls] == [WAITS] * len(calls)
        queue_ring.drop(ring, 3 + num_before)
        assert attempt(calls[-1]) == ELSEWHERE
        assert queue_ring.withdraw(ring, calls[-1]) == []
        again = RingCall(3 + num_before, 7, what)
        assert attempt(again) == WAITS
        if num_before:
            queue_ring.withdraw(ring, calls[-1])  # is over: the other one of this number goes on
            assert attempt(again) == WAITS
        for process in range(3, 6):
            queue_ring.drop(ring, process)
        assert contents(ring)[2] == []


def test_calls_of_join_are_woken_after_a_process_that_died_before_it_did(arena: DepotArena) -> None:
    ring, call = a_ring(arena), RingCall(1, 1, JOIN)
    assert queue_ring.put(ring, b"item", 1) == 0
    assert queue_ring.join(ring, call) == WAITS
    assert queue_ring.due(ring) == []
    ring.words[FINISHED] += 1  # and here it was killed
    assert queue_ring.drop(ring, 2) == [call.word]
    assert queue_ring.join(ring, call) == 0


def test_a_call_of_join_is_over_once_all_were_finished_although_more_was_put_since(arena: DepotArena) -> None:
    ring, call, other, gone = a_ring(arena), *(RingCall(process, process, JOIN) for process in (1, 2, 3))
    assert queue_ring.put(ring, b"item", 1) == 0
    assert [queue_ring.join(ring, gone), queue_ring.join(ring, call)] == [WAITS, WAITS]
    assert queue_ring.withdraw(ring, gone) == []
    assert queue_ring.finish(ring) == WAITS
    assert queue_ring.put(ring, b"another", 1) == 0
    assert queue_ring.join(ring, other) == WAITS
    assert queue_ring.due(ring) == [call.word ^ JOIN ^ JOINED]
    assert [queue_ring.join(ring, call), queue_ring.join(ring, other)] == [0, WAITS]
    queue_ring.withdraw(ring, call)
    assert queue_ring.due(ring) == []
    assert [queue_ring.finish(ring), queue_ring.join(ring, None)] == [WAITS, 0]


def test_places_of_calls_go_round_while_some_always_wait(arena: DepotArena) -> None:
    """Places are counted modulo 2**20, and begin again at 0 also where no call waits."""
    for what, last in itertools.product((GET, PUT), (PLACES - 2, PLACES // 2, RING_LENGTH - 2)):
        ring, hand = a_ring(arena, 0 if what == GET else 1), Hand([None])
        queue, at = (QUEUE, RING) if what == GET else (PUTTERS, PUTTERS_RING)
        calls = [RingCall(1, number, what) for number in range(5)]
        calls[0].place = last
        assert what == GET or queue_ring.put(ring, b"first", 1) == 0
        ring.words[at + last % RING_LENGTH], ring.words[queue] = calls[0].word, last | (last + 1 & PLACES) << PLACE_BITS
        if what == GET:
            assert [queue_ring.get(ring, hand, call) for call in calls] == [WAITS] * 5
            assert [queue_ring.put(ring, b"%d" % n, 1) for n in range(5)] == [call.word for call in calls]
            for number in (2, 0, 1, 4, 3):
                assert queue_ring.get(ring, hand, calls[number]) == 0
                assert hand == [(b"%d" % number, 1)]
        else:
            assert [queue_ring.put(ring, b"%d" % n, 1, call) for n, call in enumerate(calls)] == [WAITS] * 5
            queue_ring.withdraw(ring, calls[3])
            for number in (0, 1, 2, 4):
                assert queue_ring.get(ring, hand) == calls[number].word
                assert queue_ring.put(ring, b"%d" % number, 1, calls[number]) == 0
            assert [queue_ring.get(ring, hand), hand] == [0, [(b"4", 1)]]
        assert ring.words[queue] == 0


def test_calls_of_join_are_all_found_where_their_places_go_round(arena: DepotArena) -> None:
    ring, last = a_ring(arena), PLACES - 2
    calls = [RingCall(1, number, JOIN) for number in range(5)]
    calls[0].place = last
    assert queue_ring.put(ring, b"item", 1) == 0
    ring.words[PUTTERS_RING + last % RING_LENGTH], ring.words[PUTTERS] = calls[0].word, last | last + 1 << PLACE_BITS
    assert [queue_ring.join(ring, call) for call in calls] == [WAITS] * 5
    assert queue_ring.finish(ring) == WAITS
    assert queue_ring.put(ring, b"more", 1) == 0
    assert [queue_ring.join(ring, call) for call in calls] == [0] * 5


def test_calls_of_put_and_join_that_are_over_leave_room_for_others(arena: DepotArena) -> None:
    ring, hand = a_ring(arena, 1), Hand([None])
    assert queue_ring.put(ring, b"item", 1) == 0
    for number in range(RING_LENGTH):
        calls = [RingCall(1, 2 * (number % 2) + n, PUT) for n in range(2)]
        joining = RingCall(2, number % 4, JOIN)
        assert [queue_ring.put(ring, b"item", 1, call) for call in calls] == [WAITS] * 2
        assert queue_ring.join(ring, joining) == WAITS
        assert queue_ring.get(ring, hand) == calls[0].word
        assert queue_ring.put(ring, b"item", 1, calls[0]) == 0
        assert queue_ring.withdraw(ring, joining) == []
        assert queue_ring.get(ring, hand) == calls[1].word
        assert queue_ring.put(ring, b"item", 1, calls[1]) == 0
    assert contents(ring) == ([b"item"], 1 + 2 * RING_LENGTH, [])


def test_items_that_nobody_waits_for_any_more_fill_places(arena: DepotArena) -> None:
    """Two were put for calls that were dropped then: more are there than have room, and nobody is woken to put more."""
    ring, hand = a_ring(arena, 1), Hand([None])
    getters, putters = ([RingCall(process, 0, what) for process in (1, 2)] for what in (GET, PUT))
    assert [queue_ring.get(ring, hand, call) for call in getters] == [WAITS] * 2
    assert [queue_ring.put(ring, b"%d" % number, 1) for number in range(3)] == [getters[0].word, getters[1].word, 0]
    assert [queue_ring.drop(ring, process) for process in (1, 2)] == [[getters[1].word], []]
    assert queue_ring.sizes(ring) == (3, 1)
    assert [queue_ring.put(ring, b"more", 1, call) for call in putters] == [WAITS] * 2
    woken = [queue_ring.get(ring, hand) for _ in range(3)]
    assert woken == [0, 0, putters[0].word]


def test_the_depot_may_seize_and_give_back_a_queue_of_which_items_were_taken_ahead(arena: DepotArena) -> None:
    ring, hand, call = a_ring(arena), Hand([None]), RingCall(1, 0, GET)
    assert queue_ring.get(ring, hand, call) == WAITS
    for item in (b"1", b"2", b"3"):
        assert queue_ring.put(ring, item, 1) >= 0
    assert [queue_ring.get(ring, hand), hand] == [0, [(b"2", 1)]]
    assert seize(ring) == ([[b"1"], [b"3"]], 3, [call.word])
    give_back(ring, [[b"1"], [b"3"]], 3)
    assert contents(ring) == ([b"1", b"3"], 3, [])
    assert ring.num_ahead == 0


def test_calls_go_round(arena: DepotArena) -> None:
    ring = a_ring(arena, 1)
    for number in range(2 * RING_LENGTH):
        getter, other = RingCall(1, 1, GET), RingCall(2, 2, GET)
        hand: Hand = [None]
        assert [queue_ring.get(ring, hand, call) for call in (getter, other)] == [WAITS, WAITS]
        assert queue_ring.put(ring, b"%d" % number, 1) == getter.word
        assert queue_ring.put(ring, b"next", 1) == other.word
        assert queue_ring.get(ring, hand, other) == 0
        assert hand == [(b"next", 1)], "the second one may not have to wait for the first one to wake"
        assert queue_ring.get(ring, hand, getter) == 0
        assert hand == [(b"%d" % number, 1)]


def test_the_depot_has_the_calls_for_which_there_is_no_room(arena: DepotArena) -> None:
    ring = a_ring(arena)
    for number in range(RING_LENGTH):
        assert queue_ring.get(ring, [None], RingCall(1 + number // 64, number % 64, GET)) == WAITS
    assert queue_ring.get(ring, [None], RingCall(500, 1, GET)) == ELSEWHERE


def test_a_process_cannot_use_what_the_depot_has(arena: DepotArena) -> None:
    ring, call = a_ring(arena), RingCall(1, 1, GET)
    content = sealed([b"one", b"", b"three"])
    assert queue_ring.get(ring, [None], call) == WAITS
    assert queue_ring.put(ring, *content) == call.word
    assert seize(ring) == ([[b"one", b"", b"three"]], 1, [call.word])
    assert seize(ring) is None
    assert [queue_ring.put(ring, b"", 1), queue_ring.get(ring, [None]), queue_ring.finish(ring)] == [ELSEWHERE] * 3
    assert queue_ring.join(ring, None) == ELSEWHERE
    assert queue_ring.sizes(ring) is None
    give_back(ring, [[b"one", b"", b"three"], [b"four"]], 5)
    assert queue_ring.get(ring, [None], call) == ELSEWHERE, "it is not known there any more"
    assert contents(ring) == ([b"one", b"four"], 5, [])
    hand: Hand = [None]
    assert queue_ring.get(ring, hand) == 0
    assert hand[0]
    assert opened(*hand[0]) == [b"one", b"", b"three"]


def test_any_number_of_items_is_taken_ahead_of_a_reader_that_sleeps(
    arena: DepotArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its item, and the others need not go to the depot: there were at most 500 once."""
    monkeypatch.setattr(QueueRing, "num_cells", ITEM_BYTES // 8)
    ring, sleeping, hand = a_ring(arena), RingCall(1, 0, GET), Hand([None])
    assert queue_ring.get(ring, hand, sleeping) == WAITS
    assert queue_ring.put(ring, b"its own", 1) == sleeping.word
    for number in range(3000):
        assert queue_ring.put(ring, b"%d" % number, 1) == 0
    for number in range(3000):
        assert queue_ring.get(ring, hand) == 0
        assert hand == [(b"%d" % number, 1)]
        assert queue_ring.sizes(ring) == (2999 - number, 0)
    assert queue_ring.get(ring, hand) == REFUSED
    assert contents(ring)[0] == [b"its own"]
    assert ring.run_behind(ring.item_at(0))[1] == 3000, "one step passes all of them"
    second = RingCall(2, 0, GET)
    assert queue_ring.get(ring, hand, second) == WAITS
    assert queue_ring.put(ring, b"the next", 1) == second.word
    assert queue_ring.get(ring, hand, second) == 0
    assert hand == [(b"the next", 1)]
    assert queue_ring.get(ring, hand, sleeping) == 0
    assert hand == [(b"its own", 1)]
    assert (contents(ring)[0], ring.num_ahead) == ([], 0)


def test_a_run_may_begin_in_the_first_cell(arena: DepotArena) -> None:
    ring, sleeping, hand = a_ring(arena), RingCall(1, 0, GET), Hand([None])
    assert queue_ring.get(ring, hand, sleeping) == WAITS
    ring.write(8, b"its own", 1)
    ring.words[GETS], ring.words[PUTS] = 8, 1 << COUNT_AT | 10
    for item in (b"a", b"b", b"c"):
        assert queue_ring.put(ring, item, 1) == 0
    for item in (b"a", b"b"):
        assert [queue_ring.get(ring, hand), hand] == [0, [(item, 1)]]
    assert ring.headers[0] == RUN | 2 << COUNT_AT | 4, "one for both"
    assert (contents(ring)[0], ring.num_ahead) == ([b"its own", b"c"], 2)


class Model:
    """The same queue, as lists."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.items: list[bytes] = []
        self.unfinished = 0
        self.calls: list[tuple[int, bytes]] = []
        """The calls that wait: their word, and the item of one that puts."""

    def before(self, what: int, word: int | None) -> int:
        words = [each for each, _ in self.calls if each & what]
        return words.index(word) if word in words else len(words)

    @property
    def num_inside(self) -> int:
        return max(len(self.items) - self.before(GET, None), 0)

    def put(self, word: int, item: bytes) -> bool:
        if self.bound and self.num_inside + self.before(PUT, word) >= self.bound:
            return False
        self.end(word)
        self.items.append(item)
        self.unfinished += 1
        return True

    def get(self, word: int) -> bytes | None:
        rank = self.before(GET, word)
        if rank >= len(self.items):
            return None
        self.end(word)
        return self.items.pop(rank)

    def end(self, word: int) -> None:
        self.calls = [call for call in self.calls if call[0] != word]

    @property
    def due(self) -> set[int]:
        """The calls that may go on."""
        num_free = max(self.bound - self.num_inside, 0)
        getters, putters, joiners = ([word for word, _ in self.calls if word & what] for what in (GET, PUT, JOIN))
        return {*getters[: len(self.items)], *putters[:num_free], *(() if self.unfinished else joiners)}


class Both:
    """Does the same to a ring, as processes do, and to the model."""

    def __init__(self, arena: DepotArena, bound: int) -> None:
        self.ring, self.model = a_ring(arena, bound, COUNTS - 4), Model(bound)
        self.waiting: dict[int, RingCall] = {}
        self.awake = set[int]()
        """The calls that were woken and have not looked since."""
        self.ended_joins = set[int]()
        self.numbers = itertools.count()

    def call(self, process: int, what: int) -> RingCall | None:
        call = RingCall(process, next(self.numbers) % 50, what)
        return None if call.word in self.waiting else call

    def attempt(self, call: RingCall, item: bytes, may_wait: bool = True) -> None:
        given = call if may_wait else None
        if call.word & PUT:
            found = queue_ring.put(self.ring, item, 1, given)
            if found == ELSEWHERE:  # the memory is full
                assert self.model.items
                self.leave(call)
                return
            done = self.model.put(call.word, item)
        elif call.word & GET:
            hand: Hand = [None]
            found = queue_ring.get(self.ring, hand, given)
            expected = self.model.get(call.word)
            assert (hand[0] and hand[0][0]) == expected
            done = expected is not None
        else:
            found = queue_ring.join(self.ring, given)
            done = not self.model.unfinished or call.word in self.ended_joins
            if done:
                assert found == 0
                self.leave(call)
        assert found == (WAITS if may_wait else REFUSED) if not done else found >= 0
        if done:
            self.waiting.pop(call.word, None)
            self.wake(found)
        elif may_wait and call.word not in self.waiting:
            self.waiting[call.word] = call
            self.model.calls.append((call.word, item))

    def wake(self, found: int) -> None:
        woken = {found & PLACES, found >> OTHER & PLACES} - {0}
        assert woken <= {word & PLACES for word in self.model.due}, "no call is woken before its turn"
        self.awake |= woken

    def look(self, which: int) -> None:
        if self.waiting:
            word, call = list(self.waiting.items())[which % len(self.waiting)]
            self.awake.discard(word & PLACES)
            self.attempt(call, dict(self.model.calls)[word])

    def leave(self, call: RingCall) -> None:
        if call.place >= 0:
            words = queue_ring.withdraw(self.ring, call)
            self.model.end(call.word)
            self.waiting.pop(call.word, None)
            self.told(words)

    def finish(self) -> None:
        found = queue_ring.finish(self.ring)
        if not self.model.unfinished:
            assert found == REFUSED
            return
        self.model.unfinished -= 1
        joins = {word for word in self.waiting if word & JOIN} if not self.model.unfinished else set[int]()
        assert found == (WAITS if joins - self.ended_joins else 0)
        self.ended_joins |= joins
        self.told(queue_ring.due(self.ring))

    def die(self, process: int) -> None:
        words = queue_ring.drop(self.ring, process)
        for word in [word for word in self.waiting if (word & CALL) >> 8 == process]:
            self.model.end(word)
            del self.waiting[word]
        self.told(words)

    def told(self, words: list[int]) -> None:
        """Handle the words of all calls whose turn it is."""
        places = [word & PLACES for word in words]
        due = self.model.due | {word for word in self.waiting if word in self.ended_joins}
        assert sorted(places) == sorted(word & PLACES for word in due)
        self.awake |= {*places}

    def end(self) -> None:
        """See that nothing is left of calls once they are over."""
        for call in list(self.waiting.values()):
            self.leave(call)
        assert (self.ring.words[QUEUE], self.ring.words[PUTTERS]) == (0, 0)

    def check(self) -> None:
        items, unfinished, _ = contents(self.ring)
        assert (items, unfinished) == (self.model.items, self.model.unfinished)
        assert queue_ring.sizes(self.ring) == (self.model.num_inside, self.model.bound)
        assert {word & PLACES for word in self.model.due} <= self.awake, "a call that may go on was not woken"


happenings = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "get", "look", "put", "get_nowait"] * 3
            + ["put_nowait", "get_nowait", "join", "finish", "leave", "die"]
        ),
        st.integers(1, 4),
        st.sampled_from([0, 0, 1, 8, 9, 40]),
    ),
    min_size=25,
    max_size=80,
)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_ring_does_what_lists_do(arena: DepotArena, bound: int) -> None:
    num_round, num_ahead = 0, 0

    @given(happenings)
    @settings(deadline=None, max_examples=40)
    def hold(events: list[tuple[str, int, int]]) -> None:
        nonlocal num_round, num_ahead
        both = Both(arena, bound)
        for number, (what, process, size) in enumerate(events):
            item = number.to_bytes(1, "big") * size
            if what == "look":
                both.look(process)
            elif what == "finish":
                both.finish()
            elif what == "die":
                both.die(process)
            elif what == "leave":
                for call in list(both.waiting.values())[:1]:
                    both.leave(call)
            elif call := both.call(process, {"p": PUT, "g": GET, "j": JOIN}[what[0]]):
                both.attempt(call, item, not what.endswith("nowait"))
            both.check()
            head, tail = (both.ring.words[word] & PLACES for word in (GETS, PUTS))
            num_round += head > tail
            num_ahead += both.ring.num_ahead > 0
        both.end()

    hold()
    assert num_ahead > 5
    assert bound or num_round > 5
