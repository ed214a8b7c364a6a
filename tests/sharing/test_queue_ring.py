"""A queue in shared memory: what becomes of items and calls, in any order of events, kills and interrupts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.sharing import queue_memory, queue_ring
from ropewalk.sharing.arena import ITEM_BYTES, DepotArena
from ropewalk.sharing.queue_memory import CALL, GET, JOIN, PUT, QueueRing, opened, sealed
from ropewalk.sharing.queue_ring import ELSEWHERE, OTHER, REFUSED, WAITS, Hand, RingCall
from ropewalk.sharing.record_words import GETS, PLACES, PUTS, RING_LENGTH
from ropewalk.sharing.ringed_queue import give_back, seize
from tests.sharing.steps import interrupted_at, killed_at_step, steps_that_leave_it_locked

SMALL_CELLS = 10
MODULES = queue_memory, queue_ring


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items go round after a few."""
    monkeypatch.setattr(QueueRing, "num_cells", SMALL_CELLS)


def a_ring(arena: DepotArena, bound: int = 0) -> QueueRing:
    slot = arena.take_record()
    ring = QueueRing(arena, slot)
    ring.begin(1, bound)
    arena.free_record(slot)  # for the next one of this test
    return ring


def contents(ring: QueueRing) -> tuple[list[bytes], int, list[int]]:
    """Return the items, the number of unfinished ones and the calls; leaves the ring as it is."""
    before = bytes(ring.record[: 8 * (2 * RING_LENGTH + 64)])
    found = seize(ring)
    assert found
    ring.record[64 : len(before)] = before[64:]  # not the mutex
    return [parts[0] for parts in found[0]], found[1], found[2]


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
        self.ring, self.model = a_ring(arena, bound), Model(bound)
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
                self.leave(call)
        assert found == (WAITS if may_wait else REFUSED) if not done else found >= 0
        if done:
            self.waiting.pop(call.word, None)
            self.wake(found)
        elif may_wait and call.word not in self.waiting:
            self.waiting[call.word] = call
            self.model.calls.append((call.word, item))

    def wake(self, found: int) -> None:
        self.awake |= {found & PLACES, found >> OTHER & PLACES}

    def look(self, which: int) -> None:
        if self.waiting:
            word, call = list(self.waiting.items())[which % len(self.waiting)]
            self.awake.discard(word & PLACES)
            self.attempt(call, dict(self.model.calls)[word])

    def leave(self, call: RingCall) -> None:
        if call.place >= 0:
            self.awake |= {word & PLACES for word in queue_ring.withdraw(self.ring, call)}
        self.model.end(call.word)
        self.waiting.pop(call.word, None)

    def finish(self) -> None:
        found = queue_ring.finish(self.ring)
        if not self.model.unfinished:
            assert found == REFUSED
            return
        self.model.unfinished -= 1
        joins = {word for word in self.waiting if word & JOIN} if not self.model.unfinished else set[int]()
        assert found == (WAITS if joins - self.ended_joins else 0)
        self.ended_joins |= joins
        self.awake |= {word & PLACES for word in queue_ring.due(self.ring)}

    def die(self, process: int) -> None:
        self.awake |= {word & PLACES for word in queue_ring.drop(self.ring, process)}
        for word in [word for word in self.waiting if (word & CALL) >> 8 == process]:
            self.model.end(word)
            del self.waiting[word]

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
    @settings(deadline=None, max_examples=100)
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

    hold()
    assert num_ahead > 5
    assert bound or num_round > 5


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


def begun(arena: DepotArena) -> tuple[QueueRing, dict[str, RingCall]]:
    """Return a queue with room for two that has two, for which processes 1 and 2 wait, and 3 and 4 to put more."""
    ring = a_ring(arena, 2)
    calls = {
        name: RingCall(process, 0, what)
        for process, name, what in zip((1, 2, 3, 4), "abcd", (GET, GET, PUT, PUT), strict=True)
    }
    for name in "ab":
        assert queue_ring.get(ring, [None], calls[name]) == WAITS
    for item in (b"1", b"2", b"3", b"4"):
        assert queue_ring.put(ring, item, 1) >= 0
    for name in "cd":
        assert queue_ring.put(ring, b"5", 1, calls[name]) == WAITS
    return ring, calls


def changes(ring: QueueRing, calls: dict[str, RingCall]) -> dict[str, Callable[[], object]]:
    def taken(call: RingCall | None) -> object:
        hand: Hand = [None]
        return queue_ring.get(ring, hand, call), hand[0]

    return {
        "get": lambda: taken(None),
        "first": lambda: taken(calls["a"]),
        "second": lambda: taken(calls["b"]),
        "put": lambda: queue_ring.put(ring, b"6", 1),
        "wait": lambda: queue_ring.put(ring, b"6", 1, RingCall(5, 0, PUT)),
        "finish": lambda: queue_ring.finish(ring),
        "join": lambda: queue_ring.join(ring, RingCall(5, 1, JOIN)),
        "withdraw": lambda: queue_ring.withdraw(ring, calls["c"]) and None,
    }


CHANGES = ["get", "first", "second", "put", "wait", "finish", "join", "withdraw"]


@pytest.mark.parametrize("what", CHANGES)
def test_a_process_that_is_killed_at_any_step_leaves_the_queue_as_before_or_after_its_change(
    arena: DepotArena, what: str
) -> None:
    """As the others find it when the depot has dropped the calls of the process."""
    process = {"first": 1, "second": 2, "withdraw": 3}.get(what, 5)

    def after(num_steps: int | None) -> tuple[object, bool]:
        ring, calls = begun(arena)
        is_killed = False
        if what == "put":
            assert queue_ring.get(ring, [None]) > 0
            queue_ring.drop(ring, 3)
            queue_ring.drop(ring, 4)
        if num_steps is None:
            changes(ring, calls)[what]()
        elif num_steps:
            is_killed = killed_at_step(changes(ring, calls)[what], num_steps)
        due = queue_ring.drop(ring, process)
        return (contents(ring), due), is_killed

    (before, _), (done, _) = after(0), after(None)
    seen = list[object]()
    is_killed = True
    while is_killed:
        found, is_killed = after(len(seen) + 1)
        assert found in (before, done)
        seen.append(found)
    assert (seen[0], seen[-1]) == (before, done)
    assert seen == sorted(seen, key=lambda each: each == done), "it changes once"
    assert before != done or what in ("wait", "join", "withdraw")


@pytest.mark.parametrize(
    ("num_taken", "change"),
    [
        (0, lambda ring: queue_ring.get(ring, [None])),
        (3, lambda ring: queue_ring.put(ring, b"more", 1)),
        (3, lambda ring: queue_ring.put(ring, b"goes round to the", 1)),
        (4, lambda ring: queue_ring.put(ring, b"begins anew", 1)),
        (4, lambda ring: queue_ring.finish(ring)),
    ],
)
def test_a_process_that_is_killed_where_no_call_waits_leaves_the_queue_as_before_or_after_its_change(
    arena: DepotArena, num_taken: int, change: Callable[[QueueRing], object]
) -> None:
    def after(num_steps: int | None) -> tuple[object, bool]:
        ring = a_ring(arena)
        for item in (b"1", b"2", b"3", b"4"):
            assert queue_ring.put(ring, item, 1) == 0
        for _ in range(num_taken):
            assert queue_ring.get(ring, [None]) == 0
        if num_steps is None:
            change(ring)
        is_killed = num_steps is not None and killed_at_step(partial(change, ring), num_steps)
        found = contents(ring)
        hand: Hand = [None]
        assert [(queue_ring.get(ring, hand), hand[0]) for _ in found[0]] == [(0, (item, 1)) for item in found[0]]
        assert [queue_ring.put(ring, b"next", 1), queue_ring.get(ring, hand), hand[0]] == [0, 0, (b"next", 1)]
        return found, is_killed

    done = after(None)[0]
    seen = list[object]()
    is_killed = True
    while is_killed:
        found, is_killed = after(len(seen) + 1)
        seen.append(found)
    assert seen[-1] == done != seen[0]
    assert seen == sorted(seen, key=lambda each: each == done), "it changes once"
    assert all(each in (seen[0], done) for each in seen)


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


@pytest.mark.parametrize("what", CHANGES)
def test_an_interrupt_at_any_moment_leaves_the_mutex_to_the_others(arena: DepotArena, what: str) -> None:
    def prepared() -> tuple[Callable[[], object], int]:
        ring, calls = begun(arena)
        return changes(ring, calls)[what], ring.mutex

    assert steps_that_leave_it_locked(MODULES, prepared) == []


@pytest.mark.parametrize("outer", CHANGES)
@pytest.mark.parametrize("inner", CHANGES)
def test_a_handler_at_any_moment_makes_a_change_of_its_own(arena: DepotArena, outer: str, inner: str) -> None:
    if outer == inner and outer in ("first", "second", "withdraw"):
        pytest.skip("one call is not made twice at a time")

    def prepared() -> tuple[QueueRing, Callable[[], object], Callable[[], object]]:
        ring, calls = begun(arena)
        by_name = changes(ring, calls)
        return ring, by_name[outer], by_name[inner]

    possible = list[object]()
    for is_inner_first in (True, False):
        ring, outer_call, inner_call = prepared()
        first, second = (inner_call, outer_call) if is_inner_first else (outer_call, inner_call)
        results = [first(), second()]
        possible.append((results[::-1] if is_inner_first else results, sorted_calls(ring)))
    step, was_made = 0, True
    while was_made:
        step += 1
        ring, outer_call, inner_call = prepared()
        made = list[object]()

        def make(call: Callable[[], object], made: list[object] = made) -> None:
            made.append(call())

        was_made = interrupted_at(
            [queue_memory, queue_ring], step, partial(make, outer_call), partial(make, inner_call)
        )
        if was_made:
            assert (made[::-1], sorted_calls(ring)) in possible
    assert step > 2


def sorted_calls(ring: QueueRing) -> object:
    items, unfinished, calls = contents(ring)
    return items, unfinished, sorted(calls)
