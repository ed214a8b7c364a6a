"""Recorded states: whatever happens, they are after each dump what they would be without."""

from __future__ import annotations

import marshal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.sharing.states.recorded import (
    BARRIER,
    EVENT,
    LOCK,
    RECURSIVE_LOCK,
    SEMAPHORE,
    RecordedStates,
    WaiterTable,
    dumped_event,
    event_waiters,
)
from ropewalk.sharing.states.waiting import CallOutcome

METHODS = {
    LOCK: [(0, "acquire", ()), (0, "release", ()), (0, "standing", ())],
    RECURSIVE_LOCK: [
        (0, "acquire", ()),
        (0, "release", ()),
        (1, "wait", ()),
        (1, "notify", ()),
        (2, "wait", ()),
        (2, "notify_all", ()),
        (1, "resume", ()),
    ],
    SEMAPHORE: [(0, "acquire", ()), (0, "release", ()), (0, "release", (2,)), (0, "get_value", ())],
    EVENT: [(0, "wait", ()), (0, "set", ()), (0, "clear", ()), (0, "is_set", ())],
    BARRIER: [
        (0, "wait", (False,)),
        (0, "wait", (True,)),
        (0, "release", ()),
        (0, "abort", ()),
        (0, "reset", ()),
        (0, "n_waiting", ()),
    ],
}

happenings = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "call", "collect", "time over", "cancel", "death"]),
        st.integers(0, 20),
        st.integers(1, 3),
        st.integers(1, 2),
    ),
    max_size=40,
)


class Both:
    """Runs the same on states that stay and on states that are dumped and loaded each time."""

    def __init__(self, kind: int, bound: int) -> None:
        self.kind, self.bound = kind, bound
        self.stay = RecordedStates.at_rest(kind, bound, WaiterTable(), (0, 0, 0))
        self.go = RecordedStates.at_rest(kind, bound, WaiterTable(), (0, 0, 0))
        self.waiting: dict[tuple[int, int, int], int] = {}
        self.number = 0

    def do(self, method: str, *args: Any) -> Any:
        if self.kind == RECURSIVE_LOCK:
            for states in (self.stay, self.go):
                states.part(2)  # conditions at rest are made when they are needed
        results = [getattr(states, method)(*args) for states in (self.stay, self.go)]
        shown = [
            (repr(result.value), repr(result.error), result.lent) if hasattr(result, "lent") else result
            for result in results
        ]
        assert shown[0] == shown[1]
        woken = [[waiter.key for waiter in states.woken] for states in (self.stay, self.go)]
        assert woken[0] == woken[1]
        self.stay.woken.clear()
        resting = self.go.resting
        assert self.stay.resting == resting
        assert marshal.loads(self.stay.dumped()) == marshal.loads(self.go.dumped())
        if resting:
            self.go = RecordedStates.at_rest(self.kind, self.bound, WaiterTable(), resting)
        else:
            self.go = RecordedStates.loaded(self.kind, self.bound, WaiterTable(), self.go.dumped())
        return results[0]

    def happen(self, what: str, which: int, process: int, thread: int) -> None:
        if what == "call":
            busy = {(key[0], key[2]) for key in self.waiting}
            if (process, thread) in busy:
                return
            self.number += 1
            key = process, self.number, thread
            part, method, args = METHODS[self.kind][which % len(METHODS[self.kind])]
            outcome = self.do("decide", part, method, key, args)
            if outcome is None:
                self.waiting[key] = part
            elif outcome.lent and which > 14:
                self.do("give_up", part, key, False)  # the caller never hears of it
            elif outcome.lent:
                self.do("taken", part, key)
        elif what == "death":
            self.waiting = {key: part for key, part in self.waiting.items() if key[0] != process}
            self.do("party_gone", process, f"process {process}")
        elif self.waiting:
            key = list(self.waiting)[which % len(self.waiting)]
            if what == "collect":
                ended = self.do("collect", key)
            else:
                ended = self.do("give_up", self.waiting[key], key, what == "time over")
            if ended or what == "cancel":
                del self.waiting[key]


@pytest.mark.parametrize("kind", METHODS)
def test_states_are_after_each_dump_what_they_would_be_without(kind: int) -> None:
    @given(happenings, st.integers(-1, 2))
    @settings(deadline=None, max_examples=60)
    def hold(events: list[tuple[str, int, int, int]], bound: int) -> None:
        both = Both(kind, {SEMAPHORE: bound, BARRIER: max(1, bound + 1)}.get(kind, -1))
        for event in events:
            both.happen(*event)

    hold()


@pytest.mark.parametrize(
    ("kind", "bound", "calls", "resting"),
    [
        pytest.param(LOCK, -1, ["acquire"], (2, 7, 1), id="lock"),
        pytest.param(RECURSIVE_LOCK, -1, ["acquire", "acquire"], (2, 7, 2), id="recursive lock"),
        pytest.param(SEMAPHORE, -1, ["release", "release", "release", "acquire"], (2, 0, 0), id="semaphore"),
        pytest.param(EVENT, -1, ["set"], (1, 0, 0), id="event"),
        pytest.param(BARRIER, 1, ["wait"], (0, 0, 0), id="barrier"),
    ],
)
def test_a_state_at_rest_is_three_integers(
    kind: int, bound: int, calls: list[str], resting: tuple[int, int, int]
) -> None:
    """None of its calls waits and nothing is lent, so that processes need not restore more than that."""
    states = RecordedStates.at_rest(kind, bound, WaiterTable(), (0, 0, 0))
    assert states.resting == (0, 0, 0)
    for number, method in enumerate(calls, 1):
        outcome = states.decide(0, method, (2, number, 7), (False,) if method == "wait" else ())
        assert outcome
        if outcome.lent:
            assert states.resting is None, "it may come back"
            states.taken(0, (2, number, 7))
    assert states.resting == resting


def result_of(outcome: CallOutcome | None) -> Any:
    assert outcome
    return outcome.value


def test_a_permit_on_its_way_to_a_process_that_dies_comes_back() -> None:
    states = RecordedStates.at_rest(SEMAPHORE, -1, WaiterTable(), (0, 0, 0))
    assert states.decide(0, "acquire", (2, 1, 1), ()) is None
    states.decide(0, "release", (1, 2, 1), ())
    assert [waiter.key for waiter in states.woken] == [(2, 1, 1)]
    assert states.resting is None
    states.party_gone(2, "process 2")
    assert states.resting == (1, 0, 0)


def test_a_permit_that_has_arrived_stays_acquired() -> None:
    states = RecordedStates.at_rest(SEMAPHORE, -1, WaiterTable(), (0, 0, 0))
    states.decide(0, "acquire", (2, 1, 1), ())
    states.decide(0, "release", (1, 2, 1), ())
    assert result_of(states.collect((2, 1, 1))) is True
    states.party_gone(2, "process 2")
    assert states.resting == (0, 0, 0)


def test_a_notification_of_a_sleeper_that_dies_before_it_has_the_lock_goes_to_the_next_one() -> None:
    states = RecordedStates.at_rest(RECURSIVE_LOCK, -1, WaiterTable(), (0, 0, 0))
    for process in (2, 3):
        states.decide(0, "acquire", (process, 1, 1), ())
        states.taken(0, (process, 1, 1))
        assert states.decide(1, "wait", (process, 1, 1), ()) is None
    states.decide(0, "acquire", (1, 1, 1), ())
    states.decide(1, "notify", (1, 2, 1), ())
    states = RecordedStates.loaded(RECURSIVE_LOCK, -1, WaiterTable(), states.dumped())
    states.party_gone(2, "process 2")
    states = RecordedStates.loaded(RECURSIVE_LOCK, -1, WaiterTable(), states.dumped())
    states.decide(0, "release", (1, 3, 1), ())
    assert result_of(states.collect((3, 1, 1))) is True


def test_a_call_that_waits_for_an_event_ends_when_the_event_is_set() -> None:
    states = RecordedStates.at_rest(EVENT, -1, WaiterTable(), (0, 0, 0))
    assert states.decide(0, "wait", (2, 1, 1), ()) is None
    assert states.collect((2, 1, 1)) is None
    states.decide(0, "set", (1, 2, 1), ())
    assert result_of(states.collect((2, 1, 1))) is True


def test_the_short_form_of_an_event_is_that_of_its_state() -> None:
    states = RecordedStates.at_rest(EVENT, -1, WaiterTable(), (0, 0, 0))
    keys = [(1, 2, 3), (4, 5, 6)]
    for key in keys:
        states.decide(0, "wait", key, ())
    assert event_waiters(states.dumped()) == keys
    loaded = RecordedStates.loaded(EVENT, -1, WaiterTable(), dumped_event(keys))
    assert event_waiters(loaded.dumped()) == keys
