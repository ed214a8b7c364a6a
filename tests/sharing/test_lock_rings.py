"""Calls that wait for a lock and at its conditions, in rings: they end as the states would have them end."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.sharing import lock_rings, resting_calls
from ropewalk.sharing.arena import DepotArena
from ropewalk.sharing.lock_rings import NUM_CALLS, LockCall
from ropewalk.sharing.record_words import FIRST, PRESENT, QUEUE, SECOND
from ropewalk.sharing.shared_record import SharedRecord
from ropewalk.sharing.states.recorded import LOCK, RECURSIVE_LOCK, RecordedStates, WaiterTable
from ropewalk.sharing.states.waiting import WaiterKey
from tests.sharing.steps import (
    in_small_process,
    interrupted_at,
    is_usable_after_its_owner_died,
    killed_at_step,
    steps_that_leave_it_locked,
)

pytestmark = pytest.mark.usefixtures("shared_session")

ELSEWHERE = 100
"""From this number on, calls are those of other hosts, which the depot makes."""


def a_lock(arena: DepotArena, kind: int = RECURSIVE_LOCK) -> SharedRecord:
    record = SharedRecord(arena, arena.take_record())
    record.begin(1, kind, -1, (0, 0, 0))
    return record


def acquired(record: SharedRecord, process: int, thread: int) -> bool:
    calls: Any = SimpleNamespace(record=record, words=record.words, mutex=record.mutex, seat=process)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resting_calls, "get_ident", lambda: thread)
        return resting_calls.acquire_lock(calls, record.words[9] == RECURSIVE_LOCK)


def all_of(states: RecordedStates) -> object:
    states.part(2)
    ended = sorted((waiter.key, *rest) for waiter, rest in states.ended.items())
    return [part.plain() for part in states.parts], ended


class Both:
    """Does the same to a record, as processes do, and to states that stay."""

    def __init__(self, arena: DepotArena, kind: int) -> None:
        self.record = a_lock(arena, kind)
        self.is_recursive = kind == RECURSIVE_LOCK
        self.states = RecordedStates.at_rest(kind, -1, WaiterTable(), (0, 0, 0))
        self.waiting: dict[WaiterKey, tuple[int, LockCall | None]] = {}
        self.numbers = itertools.count(1)
        self.in_rings = Counter[str]()
        """How often what was done there."""

    @property
    def owner(self) -> tuple[int, int] | None:
        """The process and the thread that own the lock."""
        words = self.record.words
        return (words[FIRST], words[SECOND]) if words[FIRST] and words[SECOND] and not words[PRESENT] else None

    def do(self, what: str, process: int, thread: int, part: int, by_depot: bool) -> None:
        if any(key[0] == process and key[2] == thread for key in self.waiting):
            return
        key = process, next(self.numbers) % 50 + ELSEWHERE * by_depot, thread
        if not by_depot:
            getattr(self, what)(key, part)
        else:
            self.by_states(what, key, part if what in ("wait", "notify") else 0)

    def acquire(self, key: WaiterKey, _part: int) -> None:
        process, number, thread = key
        call = LockCall(process, number)
        if acquired(self.record, process, thread):
            assert self.expected(0, "acquire", key) is True
        elif lock_rings.claim(self.record, call, thread, self.is_recursive):
            self.in_rings["claim"] += 1
            assert self.expected(0, "acquire", key) is None
            self.waiting[key] = 0, call
        else:
            self.by_states("acquire", key, 0)

    def release(self, key: WaiterKey, _part: int) -> None:
        given = lock_rings.release(self.record, key[0], key[2], self.is_recursive)
        if given is None:
            self.by_states("release", key, 0)
        else:
            self.in_rings["release"] += given > 0
            assert self.expected(0, "release", key) is None
            self.check_woken(given)

    def wait(self, key: WaiterKey, part: int) -> None:
        call = LockCall(*key[:2])
        given = lock_rings.wait(self.record, call, key[2], part)
        if given is None:
            self.by_states("wait", key, part)
        else:
            self.in_rings["wait"] += 1
            assert self.expected(part, "wait", key) is None
            self.check_woken(given)
            self.waiting[key] = part, call

    def notify(self, key: WaiterKey, part: int) -> None:
        notified = lock_rings.notify(self.record, key[0], key[2], part)
        if notified is None:
            self.by_states("notify", key, part)
        else:
            self.in_rings["notify"] += notified
            assert self.expected(part, "notify", key) is None

    def check_woken(self, given: int) -> None:
        assert [waiter.key[:2] for waiter in self.states.woken] == ([lock_rings.place_of(given)] if given else [])

    def by_states(self, what: str, key: WaiterKey, part: int) -> None:
        expected = self.expected(part, what, key)
        assert self.record.change(lambda states: self.decided(states, part, what, key)) == expected
        if expected is None and what in ("acquire", "wait", "resume"):
            self.waiting[key] = part, None

    def expected(self, part: int, method: str, key: WaiterKey) -> Any:
        self.states.woken.clear()
        return self.decided(self.states, part, method, key)

    def decided(self, states: RecordedStates, part: int, method: str, key: WaiterKey) -> Any:
        outcome = states.decide(part, method, key, ())
        if outcome is None:
            return None
        if outcome.lent:
            states.taken(part, key)
        return repr(outcome.error) if outcome.error else outcome.value

    def look(self, which: int, is_late: bool, only_claims: bool = False) -> None:
        if not self.waiting:
            return
        key, (part, call) = list(self.waiting.items())[which % len(self.waiting)]
        is_late = is_late and not (only_claims and part)

        def seen(states: RecordedStates) -> Any:
            ended = states.give_up(part, key, True) if is_late else states.collect(key)
            return ended and ended.value

        if is_late and call and call.is_claim and lock_rings.withdraw(self.record, call):
            value: Any = False
            self.in_rings["withdraw"] += 1
        else:
            found = lock_rings.take(self.record, call, key[2]) if call and not is_late else None
            value = self.record.change(seen) if found is None else found or None
            self.in_rings["take"] += found is True
            assert not call or call.is_taken == (found is True)
        assert value == seen(self.states)
        if value is not None:
            del self.waiting[key]

    def cancel(self, which: int) -> None:
        if self.waiting:
            key = list(self.waiting)[which % len(self.waiting)]
            part, _ = self.waiting.pop(key)
            self.both(lambda states: states.give_up(part, key, False))
            if part:
                self.by_states("resume", (key[0], next(self.numbers) % 50, key[2]), part)

    def die(self, process: int) -> None:
        self.waiting = {key: call for key, call in self.waiting.items() if key[0] != process}
        self.both(lambda states: states.party_gone(process, "it"))

    def both(self, change: Any) -> None:
        self.record.change(change)
        change(self.states)


EVENTS = {"acquire": 12, "release": 8, "wait": 5, "notify": 8, "look": 12, "late": 3}
"""What happens, and how often."""
LEAVE_RINGS = {"cancel": 1, "die": 1, "far": 1}
"""And what the states have to do, which keep all calls then."""


@pytest.mark.parametrize("kind", [LOCK, RECURSIVE_LOCK])
@pytest.mark.parametrize("in_order", [True, False])
def test_rings_do_what_the_states_do(arena: DepotArena, kind: int, in_order: bool) -> None:
    """With and without what the states have to do: errors, a thread that waits for itself, an end of a wait."""
    events = EVENTS if in_order else EVENTS | LEAVE_RINGS
    in_rings = Counter[str]()
    for seed in range(40):
        dice = random.Random(seed)
        both = Both(arena, kind)
        for what in dice.choices([*events], [*events.values()], k=60):
            process, thread, part = dice.randint(1, 3), dice.randint(1, 2), dice.randint(1, 2)
            match what:
                case "look" | "late":
                    both.look(dice.randrange(6), what == "late", only_claims=in_order)
                case "cancel":
                    both.cancel(dice.randrange(6))
                case "die":
                    both.die(process)
                case "far":
                    both.do(dice.choice(["acquire", "release", "wait", "notify"]), process, thread, part, True)
                case "acquire":
                    if not in_order or kind == RECURSIVE_LOCK or (process, thread) != both.owner:
                        both.do(what, process, thread, part, False)
                case _:
                    if both.owner or not in_order:
                        both.do(what, *both.owner or (process, thread), part, False)
            assert both.record.look(all_of) == all_of(both.states), f"seed {seed}"
        in_rings += both.in_rings
        arena.free_record(both.record.slot)
    if in_order:
        assert in_rings.keys() == {"claim", "release", "wait", "notify", "take", "withdraw"}
        assert min(in_rings.values()) > 20, in_rings


def test_rings_go_round(arena: DepotArena) -> None:
    record = a_lock(arena)
    one, other = LockCall(1, 1), LockCall(2, 2)
    assert acquired(record, 1, 11)
    for _ in range(3 * NUM_CALLS):
        assert lock_rings.wait(record, one, 11, 1) == 0
        assert acquired(record, 2, 22)
        assert lock_rings.notify(record, 2, 22, 1)
        assert not lock_rings.notify(record, 2, 22, 1)
        assert lock_rings.take(record, one, 11) is False
        assert lock_rings.release(record, 2, 22, True) == one.entry | 1 << 20 | 1 << 32
        assert lock_rings.claim(record, other, 22, True)
        assert lock_rings.take(record, one, 11)
        assert lock_rings.release(record, 1, 11, True) == other.entry | 1 << 32
        assert lock_rings.take(record, other, 22)
        assert lock_rings.claim(record, one, 11, True)
        assert lock_rings.release(record, 2, 22, True) == one.entry | 1 << 32
        assert lock_rings.take(record, one, 11)
    assert lock_rings.release(record, 1, 11, True) == 0
    assert record.look(lambda states: states.resting) == (0, 0, 0)


def test_claims_go_round_while_there_is_always_one(arena: DepotArena) -> None:
    record = a_lock(arena)
    calls = [LockCall(process, 3) for process in (1, 2, 3)]
    assert acquired(record, 1, 1)
    assert lock_rings.claim(record, calls[1], 2, True)
    for turn in range(3 * NUM_CALLS):
        owner, first, second = turn % 3, (turn + 1) % 3, (turn + 2) % 3
        assert lock_rings.claim(record, LockCall(4, 3), 4, True) and lock_rings.withdraw(record, LockCall(4, 3))
        assert lock_rings.claim(record, calls[second], second + 1, True)
        assert processes_in(record) == [[], [first + 1, second + 1], []]
        assert lock_rings.release(record, owner + 1, owner + 1, True) == calls[first].entry | 1 << 32
        assert processes_in(record) == [[first + 1], [second + 1], []]
        assert lock_rings.take(record, calls[first], first + 1)


def processes_in(record: SharedRecord) -> list[list[int]]:
    """Return the processes of the call that was granted the lock, of those that wait for it, and of the sleepers."""
    return [[call[0][0] for call in calls] for calls in lock_rings.calls_in(record.words)]


def test_calls_that_are_over_are_passed_by_whoever_comes_next(arena: DepotArena) -> None:
    record = a_lock(arena)
    calls = {process: LockCall(process, 3) for process in range(2, 8)}
    assert acquired(record, 1, 1)
    for process in (2, 3, 4, 5):
        assert lock_rings.claim(record, calls[process], process, True)
    for process in (2, 4):
        assert lock_rings.withdraw(record, calls[process])
        assert not lock_rings.withdraw(record, calls[process]), "it is over"
    assert processes_in(record) == [[], [3, 5], []]
    assert lock_rings.release(record, 1, 1, True) == calls[3].entry | 1 << 32
    assert processes_in(record) == [[3], [5], []]
    assert not lock_rings.withdraw(record, calls[3]), "it has the lock"
    assert lock_rings.release(record, 1, 1, True) is None, "it is another one's"
    assert [lock_rings.take(record, calls[process], process) for process in (5, 3)] == [False, True]
    assert not lock_rings.take(record, calls[3], 3), "it has taken it"
    assert processes_in(record) == [[], [5], []]
    assert lock_rings.claim(record, calls[6], 6, True)
    assert lock_rings.withdraw(record, calls[5])
    assert lock_rings.release(record, 3, 3, True) == calls[6].entry | 1 << 32
    assert lock_rings.take(record, calls[6], 6)
    assert lock_rings.release(record, 6, 6, True) == 0
    assert record.look(lambda states: states.resting) == (0, 0, 0)


def test_a_lock_whose_claims_are_all_over_is_free_after_its_release(arena: DepotArena) -> None:
    record, call = a_lock(arena), LockCall(2, 3)
    for waits in (False, True):
        assert acquired(record, 1, 1)
        assert lock_rings.claim(record, call, 2, True)
        assert lock_rings.withdraw(record, call)
        if waits:
            assert lock_rings.wait(record, LockCall(1, 1), 1, 1) == 0
        else:
            assert lock_rings.release(record, 1, 1, True) == 0
        assert (record.words[FIRST], record.words[QUEUE]) == (0, 0)
    assert processes_in(record) == [[], [], [1]]


def test_a_claim_that_gets_its_lock_at_last_owns_it_as_deeply_as_before(arena: DepotArena) -> None:
    record, call, other = a_lock(arena), LockCall(1, 3), LockCall(2, 4)
    for _ in range(3):
        assert acquired(record, 1, 11)
    assert [lock_rings.release(record, 1, 11, True), acquired(record, 1, 11)] == [0, True]
    assert lock_rings.claim(record, other, 22, True)
    assert lock_rings.wait(record, call, 11, 5) == other.entry | 1 << 32
    assert lock_rings.take(record, other, 22)
    assert [lock_rings.notify(record, 2, 22, part) for part in (4, 6, 5)] == [False, False, True]
    assert lock_rings.calls_in(record.words) == ([], [((1, 3, 11), 5, 3)], [])
    assert lock_rings.release(record, 2, 22, True) == call.entry | 5 << 20 | 3 << 32
    assert lock_rings.take(record, call, 11)
    assert [lock_rings.release(record, 1, 11, True) for _ in range(3)] == [0, 0, 0]
    assert record.words[FIRST] == 0


def test_sleepers_are_notified_in_turn_by_condition_and_their_places_are_used_again(arena: DepotArena) -> None:
    record = a_lock(arena)
    calls = {process: LockCall(process, 0) for process in range(1, 7)}
    for process, part in ((1, 1), (2, 2), (3, 1), (4, 2)):
        assert acquired(record, process, process)
        assert lock_rings.wait(record, calls[process], process, part) == 0
    assert acquired(record, 9, 9)
    assert processes_in(record) == [[], [], [1, 2, 3, 4]]
    assert [lock_rings.notify(record, 9, 9, 2), lock_rings.notify(record, 9, 9, 1)] == [True, True]
    assert processes_in(record) == [[], [2, 1], [3, 4]]
    assert lock_rings.wait(record, LockCall(9, 0), 9, 1) == calls[2].entry | 2 << 20 | 1 << 32
    assert lock_rings.take(record, calls[2], 2)
    assert [lock_rings.notify(record, 2, 2, 1), lock_rings.notify(record, 2, 2, 1)] == [True, True]
    assert processes_in(record) == [[], [1, 3, 9], [4]]


def test_sleepers_are_notified_in_turn_where_their_ring_goes_round(arena: DepotArena) -> None:
    record, over = a_lock(arena), LockCall(6, 0)
    for _ in range(NUM_CALLS - 2):
        assert acquired(record, 6, 6)
        assert lock_rings.wait(record, over, 6, 1) == 0
        assert acquired(record, 1, 1)
        assert lock_rings.notify(record, 1, 1, 1) and lock_rings.release(record, 1, 1, True)
        assert lock_rings.take(record, over, 6) and lock_rings.release(record, 6, 6, True) == 0
    for process in (2, 3, 4, 5):
        assert acquired(record, process, 1)
        assert lock_rings.wait(record, LockCall(process, 0), 1, 1) == 0
    assert acquired(record, 1, 1)
    assert all(lock_rings.notify(record, 1, 1, 1) for _ in range(4))
    assert processes_in(record) == [[], [2, 3, 4, 5], []]


@pytest.mark.parametrize("waits", [True, False])
def test_a_thread_that_gave_its_lock_away_does_not_own_it_until_it_is_taken(arena: DepotArena, waits: bool) -> None:
    """As a handler of a signal would find that this thread runs meanwhile."""
    record, call, other = a_lock(arena), LockCall(1, 3), LockCall(2, 4)
    assert acquired(record, 1, 1)
    assert lock_rings.claim(record, other, 2, True) and other.is_claim
    if waits:
        assert lock_rings.wait(record, call, 1, 5) and not call.is_claim
    else:
        assert lock_rings.release(record, 1, 1, True)
    assert not acquired(record, 1, 1)
    assert lock_rings.take(record, other, 2)


@pytest.mark.parametrize("what", ["claim", "release", "wait", "notify", "take", "withdraw"])
def test_a_call_takes_over_the_mutex_of_a_process_that_died_with_it(arena: DepotArena, what: str) -> None:
    record, calls = begun(arena)
    assert is_usable_after_its_owner_died(record.mutex, changes(record, calls)[what])


@pytest.mark.parametrize("what", ["claim", "release", "wait", "notify", "take", "withdraw"])
def test_what_the_states_have_is_left_to_them(arena: DepotArena, what: str) -> None:
    record, calls = begun(arena)
    assert record.change(lambda states: states.decide(0, "acquire", (8, 8, 8), ())) is None
    before = record.look(all_of)
    assert not changes(record, calls)[what]()
    assert record.look(all_of) == before


@pytest.mark.parametrize("what", ["release", "wait", "notify"])
@pytest.mark.parametrize(("process", "thread"), [(1, 2), (2, 1)])
def test_only_the_thread_that_owns_a_recursive_lock_uses_it(
    arena: DepotArena, what: str, process: int, thread: int
) -> None:
    record, _ = begun(arena)
    before = record.look(all_of)
    does: dict[str, Callable[[], object]] = {
        "release": lambda: lock_rings.release(record, process, thread, True),
        "wait": lambda: lock_rings.wait(record, LockCall(process, 1), thread, 1),
        "notify": lambda: lock_rings.notify(record, process, thread, 1),
    }
    assert does[what]() is None
    assert record.look(all_of) == before


def test_a_thread_does_not_wait_for_a_lock_of_its_own_and_others_of_its_process_do(arena: DepotArena) -> None:
    record = a_lock(arena)
    assert acquired(record, 1, 1)
    assert not lock_rings.claim(record, LockCall(1, 1), 1, True)
    assert lock_rings.claim(record, LockCall(1, 1), 1, False), "a lock that is not recursive has no threads"
    assert lock_rings.claim(record, LockCall(1, 2), 2, True) and lock_rings.claim(record, LockCall(2, 1), 1, True)


def test_the_states_have_the_sleepers_for_which_a_ring_has_no_room(arena: DepotArena) -> None:
    record = a_lock(arena)
    for number in range(NUM_CALLS):
        assert acquired(record, 2 + number // 64, 1)
        assert lock_rings.wait(record, LockCall(2 + number // 64, number % 64), 1, 1) == 0
    assert acquired(record, 500, 1)
    assert lock_rings.wait(record, LockCall(500, 1), 1, 1) is None
    assert all(lock_rings.notify(record, 500, 1, 1) for _ in range(NUM_CALLS))
    assert len(processes_in(record)[1]) == NUM_CALLS


def test_the_states_notify_a_sleeper_for_whose_claim_a_ring_has_no_room(arena: DepotArena) -> None:
    record = a_lock(arena)
    for process in (600, 601):
        assert acquired(record, process, 1)
        assert lock_rings.wait(record, LockCall(process, 1), 1, 1) == 0
    assert acquired(record, 1, 1)
    for number in range(NUM_CALLS - 1):
        assert lock_rings.claim(record, LockCall(2 + number // 64, number % 64), 1, True)
    assert [lock_rings.notify(record, 1, 1, 1), lock_rings.notify(record, 1, 1, 1)] == [True, None]
    assert not lock_rings.claim(record, LockCall(500, 1), 1, True)


def test_the_states_have_conditions_whose_numbers_are_too_large(arena: DepotArena) -> None:
    for part in (4095, 4096):
        record = a_lock(arena)
        assert acquired(record, 1, 1)
        expected = (False, 0) if part == 4095 else (None, None)
        assert (lock_rings.notify(record, 1, 1, part), lock_rings.wait(record, LockCall(1, 0), 1, part)) == expected


def test_the_states_have_the_calls_for_which_a_ring_has_no_room(arena: DepotArena) -> None:
    record = a_lock(arena)
    assert acquired(record, 1, 11)
    for number in range(NUM_CALLS):
        assert lock_rings.claim(record, LockCall(2 + number // 64, number % 64), 11, True)
    assert not lock_rings.claim(record, LockCall(500, 1), 11, True)
    assert record.change(lambda states: states.decide(0, "acquire", (500, 1, 1), ())) is None
    assert lock_rings.release(record, 1, 11, True) is None
    assert record.look(lambda states: len(states.parts[0].plain()[4])) == NUM_CALLS + 1


def begun(arena: DepotArena) -> tuple[SharedRecord, dict[str, LockCall]]:
    """Return a lock that process 1 owns, for which 2 waits, with 3 and 4 at its first condition.

    In both rings calls that are over come first: each change passes them, and may be interrupted meanwhile.
    """
    record, over = a_lock(arena), LockCall(6, 0)
    calls = {name: LockCall(process, 0) for process, name in enumerate("abcd", 1)}
    for _ in range(3):
        assert acquired(record, 6, 6)
        assert lock_rings.wait(record, over, 6, 1) == 0
        assert acquired(record, 1, 1)
        assert lock_rings.notify(record, 1, 1, 1)
        assert lock_rings.release(record, 1, 1, True)
        assert lock_rings.take(record, over, 6)
        assert lock_rings.release(record, 6, 6, True) == 0
    for process, name in ((3, "c"), (4, "d")):
        assert acquired(record, process, process)
        assert lock_rings.wait(record, calls[name], process, 1) == 0
    assert acquired(record, 1, 1)
    for _ in range(3):
        assert lock_rings.claim(record, over, 6, True) and lock_rings.withdraw(record, over)
    assert lock_rings.claim(record, calls["b"], 2, True)
    return record, calls


def changes(record: SharedRecord, calls: dict[str, LockCall]) -> dict[str, Callable[[], object]]:
    return {
        "claim": lambda: lock_rings.claim(record, LockCall(1, 1), 9, True),
        "release": lambda: lock_rings.release(record, 1, 1, True),
        "wait": lambda: lock_rings.wait(record, calls["a"], 1, 2),
        "notify": lambda: lock_rings.notify(record, 1, 1, 1),
        "take": lambda: lock_rings.take(record, calls["b"], 2),
        "withdraw": lambda: lock_rings.withdraw(record, calls["b"]),
    }


@pytest.mark.parametrize("what", ["claim", "release", "wait", "notify", "take", "withdraw"])
def test_a_process_that_is_killed_at_any_step_leaves_the_lock_as_before_or_after_its_change(what: str) -> None:
    in_small_process(is_left_as_before_or_after_the_change, what)


def is_left_as_before_or_after_the_change(what: str) -> None:
    """As the others find it when the depot has told the states that the process is gone."""
    arena = DepotArena()
    process = 2 if what == "take" else 5 if what == "withdraw" else 1

    def after(num_steps: int | None) -> tuple[object, bool]:
        record, calls = begun(arena)
        if what == "take":
            lock_rings.release(record, 1, 1, True)
        is_killed = False
        if num_steps is None:
            changes(record, calls)[what]()
        elif num_steps:
            is_killed = killed_at_step(changes(record, calls)[what], num_steps)
        record.change(lambda states: states.party_gone(process, "it"))
        found = record.look(all_of)
        arena.free_record(record.slot)
        return found, is_killed

    (before, _), (done, _) = after(0), after(None)
    seen = list[object]()
    is_killed = True
    while is_killed:
        found, is_killed = after(len(seen) + 1)
        assert found in (before, done)
        seen.append(found)
    assert (seen[0], seen[-1]) == (before, done)
    assert seen == sorted(seen, key=lambda each: each == done), "it changes once"


@pytest.mark.parametrize("what", ["claim", "release", "wait", "notify", "withdraw"])
def test_an_interrupt_at_any_moment_leaves_the_mutex_to_the_others(arena: DepotArena, what: str) -> None:
    def prepared() -> tuple[Callable[[], object], int]:
        record, calls = begun(arena)
        arena.free_record(record.slot)  # for the next one
        return changes(record, calls)[what], record.mutex

    assert steps_that_leave_it_locked([lock_rings], prepared) == []


@pytest.mark.parametrize("outer", ["claim", "release", "wait", "notify", "withdraw"])
@pytest.mark.parametrize("inner", ["claim", "release", "wait", "notify", "withdraw", "states"])
def test_a_handler_at_any_moment_makes_a_change_of_its_own(arena: DepotArena, outer: str, inner: str) -> None:
    def prepared() -> tuple[SharedRecord, Callable[[], object], Callable[[], object]]:
        record, calls = begun(arena)
        by_name = changes(record, calls)
        by_name["states"] = lambda: record.change(lambda states: states.decide(0, "standing", (1, 0, 1), ()))
        if inner == "claim":
            return record, by_name[outer], lambda: lock_rings.claim(record, LockCall(1, 2), 8, True)
        return record, by_name[outer], by_name[inner]

    possible = list[object]()
    for is_inner_first in (True, False):
        record, outer_call, inner_call = prepared()
        first, second = (inner_call, outer_call) if is_inner_first else (outer_call, inner_call)
        results = [first(), second()]
        possible.append((results[1 if is_inner_first else 0], record.look(all_of)))
        arena.free_record(record.slot)
    step, was_made = 0, True
    while was_made:
        step += 1
        record, outer_call, inner_call = prepared()
        results = list[object]()
        was_made = interrupted_at([lock_rings], step, lambda: results.append(outer_call()), inner_call)  # noqa: B023
        if was_made:
            assert (results[0], record.look(all_of)) in possible
        arena.free_record(record.slot)
    assert step > 2
