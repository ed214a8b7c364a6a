"""The plain form of states that several processes decide about: what they write into memory that they share.

    memory ─ restored ─▶ LockState, ConditionState, ... ─ one event ─▶ outcomes     each process runs the same machine
       ▲                                    │                    └─▶ *ended*: kept until each waiting thread has its own
       └───────────── plain ────────────────┘

A call is known by the number of its process, a number there, and its thread. A state at rest, with no call that waits,
is three integers, so that a process can acquire a free lock without restoring any of this.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Any, Self

from ropewalk.sharing.states.barrier import BarrierState
from ropewalk.sharing.states.condition import ConditionState
from ropewalk.sharing.states.event import EventState
from ropewalk.sharing.states.lock import LockState
from ropewalk.sharing.states.semaphore import SemaphoreState
from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter, WaiterKey

LOCK, RECURSIVE_LOCK, SEMAPHORE, EVENT, BARRIER = 1, 2, 3, 4, 5
"""The kinds of states that can be recorded, as numbers."""

RingCall = tuple[WaiterKey, int, int]
"""A call that waits for a lock: its key, the condition at which it has waited or 0, and how often it then owns it."""
Resting = tuple[int, int, int]
"""A state at rest: of a lock the number and the thread of its owner (0: none), and its depth; of a semaphore its count;
of an event whether it is set; of a barrier nothing."""
EndedCall = tuple[Any, bool, str]
"""What a call has ended with: its result, whether that is lent (by the first state: a condition lends nothing), and the
words of its error, "" if it has none. A call that has waited ends with no other error than `BrokenBarrierError`."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWaiter(Waiter):
    """A call that processes of a host know by its key."""

    number: int

    @property
    def key(self) -> WaiterKey:
        return int(self.party.process), self.number, self.party.thread


class WaiterTable:
    """The calls of a record, each of them one object.

    Args:
        name_of: returns the name of a process for messages, by its number.
    """

    def __init__(self, name_of: Callable[[int], str] = lambda _: "") -> None:
        self._name_of = name_of
        self._known: dict[WaiterKey, RecordedWaiter] = {}

    def waiter(self, key: WaiterKey) -> RecordedWaiter:
        """Return a call by its key."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = RecordedWaiter(self.party(key[0], key[2]), key[1])
        return known

    def party(self, process: int, thread: int) -> Party:
        """Return a thread of a process."""
        return Party(str(process), self._name_of(process), thread)


class RecordedStates:
    """The states of one record: a lock with its conditions, or another object; and the calls that have ended.

    Args:
        kind: of the first state.
        bound: of a semaphore, -1 if it has none; the parties of a barrier.
        waiters: the calls.
    """

    def __init__(self, kind: int, bound: int, waiters: WaiterTable) -> None:
        self.waiters = waiters
        self.ended: dict[RecordedWaiter, EndedCall] = {}
        """Calls that waited and have ended. Those of an event are not kept: one that does not wait any more has ended
        with True."""
        self.woken: list[RecordedWaiter] = []
        """The calls that have ended now."""
        self._is_event = kind == EVENT
        self.parts: list[Any] = [_MAKERS[kind](bound)]

    @classmethod
    def at_rest(cls, kind: int, bound: int, waiters: WaiterTable, resting: Resting) -> Self:
        """Return states with no call that waits."""
        states = cls(kind, bound, waiters)
        states.parts[0].rest(*resting, waiters)
        return states

    @classmethod
    def loaded(cls, kind: int, bound: int, waiters: WaiterTable, blob: bytes) -> Self:
        """Return states as they were dumped."""
        states = cls(kind, bound, waiters)
        plains, ended = marshal.loads(blob)
        for index, plain in enumerate(plains):
            states.part(index).restore(plain, waiters)
        states.ended = {waiters.waiter(key): tuple(rest) for key, *rest in ended}
        return states

    @classmethod
    def of_permits(
        cls,
        kind: int,
        bound: int,
        waiters: WaiterTable,
        count: int,
        waiting: list[WaiterKey],
        granted: list[WaiterKey],
    ) -> Self:
        """Return those of a semaphore whose calls are in a ring; see `permit_ring.py`."""
        states = cls(kind, bound, waiters)
        states.parts[0].restore((count, waiting, granted), waiters)
        states.ended = {waiters.waiter(key): (True, True, "") for key in granted}
        return states

    @classmethod
    def of_claims(
        cls,
        kind: int,
        waiters: WaiterTable,
        resting: Resting,
        granted: list[RingCall],
        waiting: list[RingCall],
        sleeping: list[RingCall],
    ) -> Self:
        """Return those of a lock and its conditions whose calls are in rings; see `lock_rings.py`."""
        states = cls(kind, -1, waiters)
        process, thread, depth = resting
        owner, lent = ((process, thread) if process else None), None
        for key, part, num_times in granted:  # one at most
            owner, depth, lent = (key[0], key[2]), num_times, None if part else key
            states.ended[waiters.waiter(key)] = True, not part, ""
        claims = [(key, depth, True, not part) for key, part, depth in waiting]
        states.parts[0].restore((owner, depth if owner else 0, lent, [], claims), waiters)
        for index in range(1, 1 + max((part for _, part, _ in (*waiting, *sleeping)), default=0)):
            sleepers = [(key, depth) for key, part, depth in sleeping if part == index]
            awake = [(place, True) for place, (_, part, _) in enumerate(waiting) if part == index]
            states.part(index).restore((sleepers, awake, []), waiters)
        return states

    def part(self, index: int) -> Any:
        """Return a state: 0 for the first, 1 and more for the conditions of a lock."""
        while len(self.parts) <= index:
            self.parts.append(ConditionState(self.parts[0]))
        return self.parts[index]

    @property
    def resting(self) -> Resting | None:
        """The plain form of the first state if no call waits in any of them; None otherwise."""
        if self.ended or any(part.resting is None for part in self.parts[1:]):
            return None
        return self.parts[0].resting

    def dumped(self) -> bytes:
        """Return everything, for `loaded`."""
        ended = [(waiter.key, *rest) for waiter, rest in self.ended.items()]
        return marshal.dumps(([part.plain() for part in self.parts], ended))

    def decide(self, index: int, method: str, key: WaiterKey, args: Sequence[Any]) -> CallOutcome | None:
        """Make a call; returns its outcome, or None if it waits."""
        own = self.waiters.waiter(key)
        part = self.part(index)
        return self._end(getattr(part, method)(own, *args), own)

    def take(self, key: WaiterKey) -> EndedCall | None:
        """Return what a call that has waited has ended with; None if it waits."""
        waiter = self.waiters.waiter(key)
        if self._is_event:
            return None if self.parts[0].is_waiting(waiter) else (True, False, "")
        return self.ended.pop(waiter, None)

    def collect(self, key: WaiterKey) -> CallOutcome | None:
        """Return the outcome of a call that has waited, which counts as taken; None if it waits."""
        taken = self.take(key)
        if taken is None:
            return None
        value, lent, problem = taken
        waiter = self.waiters.waiter(key)
        if lent:
            self._end(self.parts[0].taken(waiter))
        return CallOutcome(waiter, value, error=error_of(problem))

    def give_up(self, index: int, key: WaiterKey, timed_out: bool) -> CallOutcome | None:
        """End a call whose time is over, or that is cancelled; returns its outcome, if it has one.

        A call that has ended in time keeps its result, and one that is cancelled gives it back.
        """
        if timed_out and (collected := self.collect(key)):
            return collected
        taken = self.take(key)
        if taken and not taken[1]:
            return None
        waiter = self.waiters.waiter(key)
        return self._end(self.part(index).give_up(waiter, timed_out), waiter)

    def taken(self, index: int, key: WaiterKey) -> None:
        """Record that what a call ended with has arrived."""
        self._end(self.part(index).taken(self.waiters.waiter(key)))

    def party_gone(self, process: int, name: str) -> None:
        """Handle the end of a process, in all states: claims of the lock are known to its conditions."""
        for waiter, (_, lent, _) in list(self.ended.items()):
            if waiter.key[0] == process:
                del self.ended[waiter]
                if lent:
                    self._end(self.parts[0].give_up(waiter, False))
        for part in self.parts:
            self._end(part.party_gone(str(process), name))

    def _end(self, outcomes: Sequence[CallOutcome], own: Waiter | None = None) -> CallOutcome | None:
        """Keep the outcomes of the calls that have waited; returns the own one."""
        found = None
        for outcome in outcomes:
            waiter = outcome.waiter
            assert isinstance(waiter, RecordedWaiter)
            if waiter is own:
                found = outcome
            else:
                self.woken.append(waiter)
                if not self._is_event:
                    self.ended[waiter] = outcome.value, outcome.lent, str(outcome.error or "")
        return found


def error_of(problem: str) -> Exception | None:
    """Return the error of a call that has ended, by its words."""
    return BrokenBarrierError(problem) if problem else None


def event_waiters(blob: bytes) -> list[WaiterKey]:
    """Return the calls that wait, of a dumped event."""
    return marshal.loads(blob)[0][0][1]


def dumped_event(waiting: list[WaiterKey]) -> bytes:
    """Return an event that is not set, dumped with the calls that wait."""
    return marshal.dumps(([(False, waiting)], []))


_MAKERS: dict[int, Callable[[int], Any]] = {
    LOCK: lambda _: LockState(),
    RECURSIVE_LOCK: lambda _: LockState(recursive=True),
    SEMAPHORE: lambda bound: SemaphoreState(0, None if bound < 0 else bound),
    EVENT: lambda _: EventState(),
    BARRIER: BarrierState,
}


__all__ = [
    "BARRIER",
    "EVENT",
    "LOCK",
    "RECURSIVE_LOCK",
    "SEMAPHORE",
    "EndedCall",
    "RecordedStates",
    "RecordedWaiter",
    "Resting",
    "RingCall",
    "WaiterTable",
    "dumped_event",
    "error_of",
    "event_waiters",
]
