"""Records in shared memory whose users are killed at every step, or interrupted by handlers that use them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.sharing import permit_ring, resting_calls
from ropewalk.sharing.arena import DepotArena, mapped
from ropewalk.sharing.permit_ring import PermitCall
from ropewalk.sharing.shared_record import SharedRecord
from ropewalk.sharing.states.recorded import EVENT, LOCK, RECURSIVE_LOCK, SEMAPHORE
from ropewalk.transport.process_mutex import layout, lock, unlock
from tests.sharing.steps import in_small_process, killed_at_step

pytestmark = pytest.mark.usefixtures("shared_session")

WAITS, OTHER = (7, 0, 1), (8, 0, 1)


def record_of(arena: DepotArena, kind: int, resting: tuple[int, int, int] = (0, 0, 0), bound: int = -1) -> SharedRecord:
    record = SharedRecord(arena, arena.take_record())
    record.begin(1, kind, bound, resting)
    return record


def calls_of(record: SharedRecord, seat: int = 7) -> Any:
    return SimpleNamespace(record=record, words=record.words, mutex=record.mutex, seat=seat)


def what_it_is(record: SharedRecord) -> object:
    return record.look(lambda states: ([part.plain() for part in states.parts[:1]], sorted(map(repr, states.ended))))


def wait_for(record: SharedRecord) -> Callable[[], object]:
    return lambda: record.change(lambda states: states.decide(0, "acquire", WAITS, ()))


def release_to(record: SharedRecord) -> Callable[[], object]:
    return lambda: record.change(lambda states: states.decide(0, "release", OTHER, ()))


def enter(record: SharedRecord, number: int = 1) -> PermitCall:
    call = PermitCall(7, number)
    assert permit_ring.enter(record, call)
    return call


def enter_and_be_granted(record: SharedRecord) -> None:
    for number in (1, 2):
        enter(record, number)
    permit_ring.grant(record)


def entered(number: int) -> PermitCall:
    """Return what one of these two calls is."""
    call = PermitCall(7, number)
    call.place = number - 1
    return call


def take_of(record: SharedRecord) -> Callable[[], object]:
    return lambda: permit_ring.take(record, entered(1), False)


def leave_of(record: SharedRecord) -> Callable[[], object]:
    return lambda: permit_ring.take(record, entered(2), True)


CASES: dict[str, tuple[int, Callable[[SharedRecord], object], Callable[[SharedRecord], Callable[[], object]]]] = {
    "acquire": (LOCK, lambda record: None, lambda record: lambda: resting_calls.acquire_lock(calls_of(record), False)),
    "release": (
        RECURSIVE_LOCK,
        lambda record: resting_calls.acquire_lock(calls_of(record), True),
        lambda record: lambda: resting_calls.release_lock(calls_of(record), True),
    ),
    "wait": (SEMAPHORE, lambda record: None, wait_for),
    "wake": (SEMAPHORE, lambda record: wait_for(record)(), release_to),
    "wait at an event": (EVENT, lambda record: None, lambda record: lambda: record.wait_at_event(WAITS)),
    "enter": (SEMAPHORE, enter_and_be_granted, lambda record: lambda: enter(record, 3)),
    "grant": (SEMAPHORE, enter_and_be_granted, lambda record: lambda: permit_ring.grant(record)),
    "grant to nobody": (SEMAPHORE, lambda record: None, lambda record: lambda: permit_ring.grant(record)),
    "take": (SEMAPHORE, enter_and_be_granted, take_of),
    "leave": (SEMAPHORE, enter_and_be_granted, leave_of),
    "states after a ring": (SEMAPHORE, enter_and_be_granted, release_to),
    "set": (EVENT, lambda record: record.wait_at_event(WAITS), lambda record: record.set_event),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_that_is_killed_at_any_step_has_changed_all_or_nothing(case: str) -> None:
    in_small_process(is_changed_as_a_whole_or_not, case)


def is_changed_as_a_whole_or_not(case: str) -> None:
    arena = DepotArena()
    kind, prepare, change_of = CASES[case]
    record = record_of(arena, kind)
    prepare(record)
    before = what_it_is(record)
    whole = record_of(arena, kind)
    prepare(whole)
    change_of(whole)()
    after = what_it_is(whole)
    seen = list[object]()
    step = 1
    while True:
        record = record_of(arena, kind)
        prepare(record)
        was_killed = killed_at_step(change_of(record), step)
        now = what_it_is(record)  # nobody waits for the mutex of the dead
        assert now in (before, after)
        seen.append(now)
        if not was_killed:
            break
        step += 1
    assert seen[0] == before
    assert seen[-1] == after
    assert seen == sorted(seen, key=lambda each: each == after), "it changes once"


@pytest.mark.parametrize("kind", [LOCK, RECURSIVE_LOCK])
def test_a_lock_at_rest_does_what_its_states_do(arena: DepotArena, kind: int) -> None:
    record = record_of(arena, kind)
    mine, theirs = calls_of(record, 7), calls_of(record, 8)
    is_recursive = kind == RECURSIVE_LOCK
    assert not resting_calls.release_lock(mine, is_recursive), "the states say what is wrong"
    assert resting_calls.acquire_lock(mine, is_recursive)
    owner = (7, threading.get_ident())
    assert record.look(lambda states: states.parts[0].plain()[:2]) == (owner, 1)
    assert not resting_calls.acquire_lock(theirs, is_recursive)
    assert resting_calls.acquire_lock(mine, is_recursive) == is_recursive
    if is_recursive:
        assert not resting_calls.release_lock(theirs, is_recursive)
        assert resting_calls.release_lock(mine, is_recursive)
    assert resting_calls.release_lock(mine if is_recursive else theirs, is_recursive)
    assert record.look(lambda states: states.resting) == (0, 0, 0)


def test_nobody_overtakes_a_call_that_waits(arena: DepotArena) -> None:
    record = record_of(arena, SEMAPHORE)
    wait_for(record)()
    assert not resting_calls.add(calls_of(record), 1)
    release_to(record)()
    assert record.look(lambda states: [waiter.key for waiter in states.ended]) == [WAITS]
    assert not resting_calls.add(calls_of(record), -1)


def test_a_semaphore_stays_within_its_bounds(arena: DepotArena) -> None:
    calls = calls_of(record_of(arena, SEMAPHORE, (1, 0, 0), bound=1))
    assert not resting_calls.add(calls, 1)
    assert resting_calls.add(calls, -1)
    assert not resting_calls.add(calls, -1)
    assert resting_calls.add(calls, 1)


def test_a_change_within_a_change_of_the_same_thread_is_not_lost(arena: DepotArena) -> None:
    # As a handler of a signal makes it, which runs between two steps of the outer change.
    record = record_of(arena, SEMAPHORE)
    nested = [resting_calls.add, lambda calls, _: wait_for(calls.record)()]
    num_tries = 0

    def outer(states: Any) -> Any:
        nonlocal num_tries
        num_tries += 1
        if nested:
            nested.pop()(calls_of(record), 1)
        return states.decide(0, "release", OTHER, ())

    nested.pop()
    record.change(outer)
    assert num_tries == 2
    assert record.look(lambda states: states.resting) == (2, 0, 0)


def test_signals_at_any_moment_lose_no_permit(arena: DepotArena) -> None:
    record = record_of(arena, SEMAPHORE)
    calls = calls_of(record)
    num_handled = num_done = 0

    def add_one() -> None:
        if not resting_calls.add(calls, 1):
            record.change(lambda states: states.decide(0, "release", OTHER, ()))

    def handler(*_: object) -> None:
        nonlocal num_handled
        num_handled += 1
        add_one()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while num_handled < 100:
            add_one()
            record.change(lambda states: states.decide(0, "release", OTHER, ()))
            num_done += 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert record.look(lambda states: states.resting) == (num_done + num_handled, 0, 0)


def test_more_threads_than_a_record_holds_are_refused_and_harm_nobody(arena: DepotArena) -> None:
    record = record_of(arena, EVENT)
    waiting = [(7, number, 1 << 40) for number in range(12_000)]
    record.wait_at_event(waiting[0])
    with pytest.raises(OverflowError, match="are needed for the calls that wait"):
        record.change(lambda states: [states.decide(0, "wait", each, ()) for each in waiting[1:]])
    assert len(record.set_event()) == 1
    lock(record.mutex)
    unlock(record.mutex)


def test_a_process_maps_the_arena_of_its_depot_and_no_other_file(arena: DepotArena) -> None:
    ours = mapped(arena.place, arena.mark, layout())
    assert ours
    assert ours.mark == arena.mark
    assert mapped(arena.place, b"x" * 16, layout()) is None
    assert mapped(arena.place, arena.mark, layout() + 1) is None
    assert mapped("/proc/self/fd/99999", arena.mark, layout()) is None


def test_seats_and_records_are_given_out_once_and_come_back(arena: DepotArena) -> None:
    seats = [arena.take_seat() for _ in range(512)]
    assert sorted(seats) == list(range(1, 513))
    assert arena.take_seat() == 0
    arena.free_seat(9)
    assert arena.take_seat() == 9
    first = arena.take_record()
    record = SharedRecord(arena, first)
    record.begin(5, LOCK, -1, (3, 3, 3))
    arena.free_record(first)
    assert arena.take_record() == first
    assert not any(record.words[8:16]), "it is zeroed"
