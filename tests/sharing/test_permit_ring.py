"""Calls that wait at a semaphore in a ring: what becomes of them is what the states would make of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.sharing import permit_ring, resting_calls
from ropewalk.sharing.arena import DepotArena
from ropewalk.sharing.lock_rings import place_of
from ropewalk.sharing.permit_ring import PermitCall, PermitSeen
from ropewalk.sharing.record_words import FIRST, RING_LENGTH
from ropewalk.sharing.shared_record import SharedRecord
from ropewalk.sharing.states.recorded import SEMAPHORE, RecordedStates, WaiterTable
from ropewalk.sharing.states.waiting import WaiterKey
from tests.sharing.steps import interrupted_at, is_usable_after_its_owner_died, steps_that_leave_it_locked

ELSEWHERE = 100
"""From this number on, calls are those of other hosts, which the depot makes."""


def semaphore(arena: DepotArena, count: int = 0, bound: int = -1) -> SharedRecord:
    record = SharedRecord(arena, arena.take_record())
    record.begin(1, SEMAPHORE, bound, (count, 0, 0))
    return record


def calls_to(record: SharedRecord) -> Any:
    return SimpleNamespace(record=record, words=record.words, mutex=record.mutex, seat=7)


def all_of(states: RecordedStates) -> object:
    return states.parts[0].plain(), sorted((waiter.key, *rest) for waiter, rest in states.ended.items())


class Both:
    """Does the same to a record, as processes do, and to states that stay."""

    def __init__(self, arena: DepotArena, count: int, bound: int) -> None:
        self.record = semaphore(arena, count, bound)
        self.states = RecordedStates.at_rest(SEMAPHORE, bound, WaiterTable(), (count, 0, 0))
        self.waiting: dict[WaiterKey, PermitCall | None] = {}
        self.numbers = itertools.count(1)
        self.num_granted = 0
        """Permits that were granted in the ring."""
        self.num_left = 0
        """Calls that have left the ring without one."""

    def acquire(self, process: int, by_depot: bool) -> None:
        key = process, next(self.numbers) % 50 + ELSEWHERE * by_depot, 0
        if key in self.waiting:
            return
        call = PermitCall(*key[:2])
        if not by_depot and resting_calls.add(calls_to(self.record), -1):
            ended: object = True
        elif not by_depot and permit_ring.enter(self.record, call):
            ended = None
        else:
            ended, call = self.record.change(lambda states: self.decided(states, "acquire", key)), None
        assert ended == self.decided(self.states, "acquire", key)
        if ended is None:
            self.waiting[key] = call

    def release(self) -> None:
        key = 1, ELSEWHERE, 0
        self.states.woken.clear()
        expected = self.decided(self.states, "release", key)
        woken = [waiter.key for waiter in self.states.woken]
        if resting_calls.add(calls_to(self.record), 1):
            assert not woken
        elif (granted := permit_ring.grant(self.record)) is not None:
            assert woken == ([(*place_of(granted), 0)] if granted else [])
            self.num_granted += bool(granted)
        else:
            assert expected == self.record.change(lambda states: self.decided(states, "release", key))

    def look(self, which: int, is_late: bool) -> None:
        if not self.waiting:
            return
        key, call = list(self.waiting.items())[which % len(self.waiting)]

        def seen(states: RecordedStates) -> Any:
            ended = states.give_up(0, key, True) if is_late else states.collect(key)
            return ended and ended.value

        found = permit_ring.take(self.record, call, is_late) if call else PermitSeen.ELSEWHERE
        if found is PermitSeen.ELSEWHERE:
            value = self.record.change(seen)
        else:
            value = {PermitSeen.GRANTED: True, PermitSeen.WITHDRAWN: False, PermitSeen.WAITS: None}[found]
            assert call and call.is_taken == (found is PermitSeen.GRANTED)
            self.num_left += value is False
        assert value == seen(self.states)
        if value is not None:
            del self.waiting[key]

    def cancel(self, which: int) -> None:
        if self.waiting:
            key = list(self.waiting)[which % len(self.waiting)]
            del self.waiting[key]
            for do in (self.record.change, lambda change: change(self.states)):
                do(lambda states: states.give_up(0, key, False))

    def die(self, process: int) -> None:
        self.waiting = {key: call for key, call in self.waiting.items() if key[0] != process}
        for do in (self.record.change, lambda change: change(self.states)):
            do(lambda states: states.party_gone(process, "it"))

    def decided(self, states: RecordedStates, method: str, key: WaiterKey) -> Any:
        outcome = states.decide(0, method, key, ())
        if outcome is None:
            return None
        if outcome.lent:
            states.taken(0, key)
        return repr(outcome.error) if outcome.error else outcome.value


EVENTS = {"acquire": 16, "release": 12, "look": 10, "late": 4, "cancel": 1, "die": 1, "far": 1}
"""What happens, and how often: mostly what keeps calls in the ring."""


@pytest.mark.parametrize(("count", "bound"), [(0, -1), (1, 1), (0, 2)])
def test_a_ring_does_what_the_states_do(arena: DepotArena, count: int, bound: int) -> None:
    num_granted, num_left = 0, 0
    for seed in range(50):
        dice = random.Random(seed)
        both = Both(arena, count, bound)
        for what in dice.choices([*EVENTS], [*EVENTS.values()], k=40):
            match what:
                case "acquire" | "far":
                    both.acquire(dice.randint(1, 3), what == "far")
                case "release":
                    both.release()
                case "look" | "late":
                    both.look(dice.randrange(10), what == "late")
                case "cancel":
                    both.cancel(dice.randrange(10))
                case _:
                    both.die(dice.randint(1, 3))
            assert both.record.look(all_of) == all_of(both.states), f"seed {seed}"
        num_granted, num_left = num_granted + both.num_granted, num_left + both.num_left
        arena.free_record(both.record.slot)
    assert min(num_granted, num_left) > 25, "these are what is compared"


def keys_in(record: SharedRecord) -> tuple[list[int], list[int]]:
    """Return the processes of the calls that wait, and of those that were granted a permit."""
    waiting, granted = permit_ring.calls_in(record.words)
    return [key[0] for key in waiting], [key[0] for key in granted]


def test_a_ring_goes_round(arena: DepotArena) -> None:
    record = semaphore(arena)
    call, other = PermitCall(7, 1), PermitCall(8, 2)
    for turn in range(3 * RING_LENGTH):
        assert permit_ring.enter(record, call)
        assert permit_ring.enter(record, other)
        assert permit_ring.take(record, call, give_up=True) is PermitSeen.WITHDRAWN
        assert permit_ring.take(record, other, give_up=False) is PermitSeen.WAITS
        assert keys_in(record) == ([8], [])
        assert permit_ring.grant(record) == other.entry
        assert keys_in(record) == ([], [8])
        assert permit_ring.take(record, other, give_up=bool(turn % 2)) is PermitSeen.GRANTED
        assert keys_in(record) == ([], []) and other.is_taken and not call.is_taken
    assert record.look(lambda states: states.resting) == (0, 0, 0)


def test_calls_that_are_over_are_passed_by_whoever_comes_next(arena: DepotArena) -> None:
    record = semaphore(arena)
    calls = [PermitCall(process, 0) for process in range(1, 6)]
    for call in calls[:3]:
        assert permit_ring.enter(record, call)
    assert permit_ring.take(record, calls[0], give_up=True) is PermitSeen.WITHDRAWN
    assert permit_ring.enter(record, calls[3])
    assert keys_in(record) == ([2, 3, 4], [])
    assert [permit_ring.grant(record), permit_ring.grant(record)] == [calls[1].entry, calls[2].entry]
    assert permit_ring.take(record, calls[1], give_up=False) is PermitSeen.GRANTED
    assert permit_ring.enter(record, calls[4])
    assert keys_in(record) == ([4, 5], [3])
    assert [permit_ring.grant(record) for _ in range(3)] == [calls[3].entry, calls[4].entry, 0]
    assert record.words[FIRST] == 1


@pytest.mark.parametrize("bound", [-1, 0, 1, 2])
def test_a_permit_for_calls_that_are_all_over_is_counted_up_to_the_bound(arena: DepotArena, bound: int) -> None:
    record = semaphore(arena, 0, bound)
    calls = [PermitCall(process, 0) for process in (1, 2)]
    for call in calls:
        assert permit_ring.enter(record, call)
    for call in calls:
        assert permit_ring.take(record, call, give_up=True) is PermitSeen.WITHDRAWN
    most = 3 if bound < 0 else bound
    assert [permit_ring.grant(record) for _ in range(most)] == [0] * most
    assert record.words[FIRST] == most
    assert permit_ring.grant(record) == (0 if bound < 0 else None), "the states have the error"


@pytest.mark.parametrize("what", ["enter", "grant", "take"])
def test_a_call_takes_over_the_mutex_of_a_process_that_died_with_it(arena: DepotArena, what: str) -> None:
    record, call = semaphore(arena), PermitCall(7, 1)
    permit_ring.enter(record, call)
    does: dict[str, Callable[[], object]] = {
        "enter": lambda: permit_ring.enter(record, PermitCall(8, 1)),
        "grant": lambda: permit_ring.grant(record),
        "take": lambda: permit_ring.take(record, call, give_up=True),
    }
    assert is_usable_after_its_owner_died(record.mutex, does[what])


def test_the_states_have_the_calls_for_which_the_ring_has_no_room(arena: DepotArena) -> None:
    record = semaphore(arena)
    calls = [PermitCall(number >> 6, number & 63) for number in range(64, 64 + RING_LENGTH)]
    assert all(permit_ring.enter(record, call) for call in calls)
    assert not permit_ring.enter(record, PermitCall(500, 1))
    assert permit_ring.take(record, calls[-1], False) is PermitSeen.WAITS
    assert [permit_ring.grant(record) for _ in calls] == [call.entry for call in calls]
    assert permit_ring.take(record, calls[0], False) is PermitSeen.GRANTED, "all that there is room for were granted"
    assert permit_ring.take(record, calls[-1], False) is PermitSeen.GRANTED
    record = semaphore(arena)
    assert all(permit_ring.enter(record, call) for call in calls)
    assert record.change(lambda states: states.decide(0, "acquire", (500, 1, 0), ())) is None
    assert permit_ring.take(record, calls[0], False) is PermitSeen.ELSEWHERE
    assert permit_ring.grant(record) is None
    assert record.look(lambda states: len(states.parts[0].plain()[1])) == RING_LENGTH + 1


@pytest.mark.parametrize("outer", ["enter", "grant", "take", "leave"])
@pytest.mark.parametrize("inner", ["enter", "grant", "take", "leave", "states"])
def test_a_handler_at_any_moment_makes_a_change_of_its_own(arena: DepotArena, outer: str, inner: str) -> None:
    if outer == inner and outer in ("take", "leave"):
        pytest.skip("one call does not end twice")

    def begun() -> tuple[SharedRecord, dict[str, Callable[[], object]]]:
        record = semaphore(arena)
        over, first, second = [PermitCall(6, number) for number in range(6)], PermitCall(7, 1), PermitCall(7, 2)
        for call in (*over[:3], first, *over[3:], second):
            permit_ring.enter(record, call)
        for _ in range(4):
            permit_ring.grant(record)
        for call in over:  # an outer change passes them, and may be interrupted meanwhile
            permit_ring.take(record, call, True)
        return record, {
            "enter": lambda: permit_ring.enter(record, PermitCall(7, 3 if outer != "enter" else 4)),
            "grant": lambda: permit_ring.grant(record),
            "take": lambda: permit_ring.take(record, first, False),
            "leave": lambda: permit_ring.take(record, second, True),
            "states": lambda: record.change(lambda states: states.decide(0, "acquire", (8, 0, 0), ())),
        }

    def inner_of(calls: dict[str, Callable[[], object]], record: SharedRecord) -> Callable[[], object]:
        return calls[inner] if inner != "enter" else lambda: permit_ring.enter(record, PermitCall(9, 1))

    possible = list[object]()
    for inner_first in (True, False):
        record, calls = begun()
        order = [inner_of(calls, record), calls[outer]]
        results = [do() for do in (order if inner_first else reversed(order))]
        possible.append((results[1 if inner_first else 0], record.look(all_of)))
    step = 0
    while True:
        step += 1
        record, calls = begun()
        results = list[object]()
        was_made = interrupted_at([permit_ring], step, lambda: results.append(calls[outer]()), inner_of(calls, record))  # noqa: B023
        if not was_made:
            break
        assert (results[0], record.look(all_of)) in possible
        arena.free_record(record.slot)
    assert step > 2


@pytest.mark.parametrize("what", ["enter", "grant", "take", "leave"])
def test_an_interrupt_at_any_moment_leaves_the_mutex_to_the_others(arena: DepotArena, what: str) -> None:
    def prepared() -> tuple[Callable[[], object], int]:
        record = semaphore(arena)
        first, second = PermitCall(7, 1), PermitCall(7, 2)
        for call in (first, second):
            permit_ring.enter(record, call)
        permit_ring.grant(record)
        arena.free_record(record.slot)  # for the next one
        calls = {
            "enter": lambda: permit_ring.enter(record, PermitCall(7, 3)),
            "grant": lambda: permit_ring.grant(record),
            "take": lambda: permit_ring.take(record, first, False),
            "leave": lambda: permit_ring.take(record, second, True),
        }
        return calls[what], record.mutex

    assert steps_that_leave_it_locked([permit_ring], prepared) == []
