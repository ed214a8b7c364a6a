"""A queue in shared memory, where a process is killed or interrupted at any step of a change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ropewalk.sharing import queue_memory, queue_ring
from ropewalk.sharing.arena import DepotArena
from ropewalk.sharing.queue_memory import GET, JOIN, PUT, QueueRing
from ropewalk.sharing.queue_ring import WAITS, Hand, RingCall
from tests.sharing.small_queue import SMALL_CELLS, a_ring, contents
from tests.sharing.small_queue import small_memory as small_memory
from tests.sharing.steps import (
    in_small_process,
    interrupted_at,
    is_usable_after_its_owner_died,
    killed_at_step,
    steps_that_leave_it_locked,
)

pytestmark = pytest.mark.usefixtures("shared_session")

MODULES = queue_memory, queue_ring


def an_arena_for_small_queues() -> DepotArena:
    """Return that of a process that makes nothing but one check."""
    QueueRing.num_cells = SMALL_CELLS
    return DepotArena()


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


@pytest.mark.parametrize("what", [*CHANGES, "sizes"])
def test_each_change_has_the_mutex_from_its_begin_to_its_end(
    arena: DepotArena, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    ring, calls = begun(arena)
    change = {**changes(ring, calls), "sizes": lambda: queue_ring.sizes(ring)}[what]
    seen = list[tuple[str, int, bytes]]()
    for name in ("trylock", "lock", "unlock"):
        original = getattr(queue_ring, name)

        def noted(mutex: int, name: str = name, original: Callable[[int], int] = original) -> int:
            seen.append((name.removeprefix("try"), mutex, bytes(ring.record[64:])))
            return original(mutex)

        monkeypatch.setattr(queue_ring, name, noted)
    before = bytes(ring.record[64:])
    change()
    assert [(name, mutex) for name, mutex, _ in seen] == [("lock", ring.mutex), ("unlock", ring.mutex)]
    assert [record for _, _, record in seen] == [before, bytes(ring.record[64:])]


@pytest.mark.parametrize("what", [*CHANGES, "sizes"])
def test_a_change_goes_on_after_the_death_of_another_process_that_had_the_mutex(arena: DepotArena, what: str) -> None:
    ring, calls = begun(arena)
    change = {**changes(ring, calls), "sizes": lambda: queue_ring.sizes(ring)}[what]
    assert is_usable_after_its_owner_died(ring.mutex, change)


def test_a_withdrawal_that_is_interrupted_half_way_counts_as_a_change(
    arena: DepotArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler in which that happens may catch it, and the change that it has interrupted goes on."""
    ring, calls = begun(arena)
    before = ring.version
    monkeypatch.setattr(QueueRing, "calls", property(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        queue_ring.withdraw(ring, calls["c"])
    assert ring.version > before


@pytest.mark.parametrize("what", CHANGES)
def test_a_process_that_is_killed_at_any_step_leaves_the_queue_as_before_or_after_its_change(what: str) -> None:
    in_small_process(is_left_as_before_or_after_the_change, what)


def is_left_as_before_or_after_the_change(what: str) -> None:
    """As the others find it when the depot has dropped the calls of the process."""
    arena = an_arena_for_small_queues()
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


WITHOUT_CALLS: dict[str, tuple[int, Callable[[QueueRing], object]]] = {
    "get": (0, lambda ring: queue_ring.get(ring, [None])),
    "put": (3, lambda ring: queue_ring.put(ring, b"more", 1)),
    "put what goes round": (3, lambda ring: queue_ring.put(ring, b"goes round to the", 1)),
    "put what begins anew": (4, lambda ring: queue_ring.put(ring, b"begins anew", 1)),
    "finish": (4, lambda ring: queue_ring.finish(ring)),
}
"""How many of four items were taken before, and what is done then."""


@pytest.mark.parametrize("what", WITHOUT_CALLS)
def test_a_process_that_is_killed_where_no_call_waits_leaves_the_queue_as_before_or_after_its_change(what: str) -> None:
    in_small_process(is_left_as_before_or_after_where_no_call_waits, what)


def is_left_as_before_or_after_where_no_call_waits(what: str) -> None:
    arena = an_arena_for_small_queues()
    num_taken, change = WITHOUT_CALLS[what]

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

        was_made = interrupted_at(MODULES, step, partial(make, outer_call), partial(make, inner_call))
        if was_made:
            assert (made[::-1], sorted_calls(ring)) in possible
    assert step > 2


@pytest.mark.parametrize("what", [GET, PUT, JOIN])
def test_a_call_that_begins_to_wait_is_woken_by_a_handler_that_comes_at_any_moment(
    arena: DepotArena, what: int
) -> None:
    """Either the handler sees that it waits, or it sees what the handler did."""
    step, was_made = 0, True
    while was_made:
        step += 1
        ring, call, made = a_ring(arena, 1), RingCall(1, 1, what), list[int]()
        assert what == GET or queue_ring.put(ring, b"item", 1) == 0

        def begin(ring: QueueRing = ring, call: RingCall = call, made: list[int] = made) -> None:
            if what == GET:
                made.append(queue_ring.get(ring, [None], call))
            else:
                made.append(queue_ring.put(ring, b"next", 1, call) if what == PUT else queue_ring.join(ring, call))

        def handle(ring: QueueRing = ring, made: list[int] = made) -> None:
            if what == GET:
                made.append(queue_ring.put(ring, b"item", 1))
            else:
                made.append(queue_ring.get(ring, [None]) if what == PUT else queue_ring.finish(ring))

        was_made = interrupted_at(MODULES, step, begin, handle)
        if was_made:
            assert made in ([0, 0], [WAITS if what == JOIN else call.word, WAITS])
    assert step > 2


def test_a_get_is_made_anew_where_a_handler_takes_its_item_while_it_looks_which_call_to_wake(arena: DepotArena) -> None:
    """No call of `get` waits, and two of `put` do: each item is taken once, and each of the two is woken once."""
    step, was_made = 0, True
    while was_made:
        step += 1
        ring, taken = a_ring(arena, 2), list[tuple[Hand, int]]()
        for item in (b"1", b"2"):
            assert queue_ring.put(ring, item, 1) == 0
        calls = [RingCall(process, 0, PUT) for process in (1, 2)]
        assert [queue_ring.put(ring, b"next", 1, call) for call in calls] == [WAITS] * 2

        def take(ring: QueueRing = ring, taken: list[tuple[Hand, int]] = taken) -> None:
            hand: Hand = [None]
            woken = queue_ring.get(ring, hand)
            taken.append((hand, woken))

        was_made = interrupted_at(MODULES, step, take, take)
        if was_made:
            assert sorted(taken, key=str) == [([(b"1", 1)], calls[0].word), ([(b"2", 1)], calls[1].word)]
    assert step > 2


def sorted_calls(ring: QueueRing) -> object:
    items, unfinished, calls = contents(ring)
    return items, unfinished, sorted(calls)
