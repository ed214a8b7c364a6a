"""The depot's part in objects whose state is in shared memory: calls of other hosts, and deaths.

call of another host ─▶ RecordedState ─▶ record: decided here, as every process of the host does
                              ▲  └ waits: kept here, until a process that ends it rings
a process is gone ────────────┘ its calls are dropped, its lock is free, threads are woken again
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ropewalk.sharing.arena import NUM_BERTHS, NUM_SEATS, DepotArena
from ropewalk.sharing.record_words import TARGET
from ropewalk.sharing.shared_record import SharedRecord
from ropewalk.sharing.states import KINDS
from ropewalk.sharing.states.barrier import BarrierState
from ropewalk.sharing.states.condition import ConditionState
from ropewalk.sharing.states.event import EventState
from ropewalk.sharing.states.lock import LockState
from ropewalk.sharing.states.recorded import (
    BARRIER,
    EVENT,
    LOCK,
    RECURSIVE_LOCK,
    SEMAPHORE,
    EndedCall,
    RecordedStates,
    RecordedWaiter,
    WaiterTable,
    error_of,
)
from ropewalk.sharing.states.semaphore import SemaphoreState
from ropewalk.sharing.states.waiting import CallOutcome, Waiter
from ropewalk.transport.process_mutex import are_mutexes_possible, layout, post

if TYPE_CHECKING:
    from ropewalk.sharing.states.recorded import Resting
    from ropewalk.sharing.states.waiting import WaiterKey
    from ropewalk.sharing.waiting_calls import DepotCaller


class DepotCallers:
    """The arena of a depot, made when it is first needed, and the numbers of its callers there."""

    def __init__(self) -> None:
        self.arena: DepotArena | None = None
        self._callers: dict[int, DepotCaller] = {}
        self._numbers: dict[str, int] = {}
        self._others = itertools.count(NUM_SEATS + 1)

    def opened(self) -> DepotArena | None:
        """Return the arena; None if this host cannot have one."""
        if self.arena is None and are_mutexes_possible():
            try:
                self.arena = DepotArena()
            except OSError:  # no memory or descriptor is left: the depot serves its objects by calls
                return None
        return self.arena

    def sit(self, caller: DepotCaller) -> tuple[int, str, str, bytes, int]:
        """Return the seat of a caller, 0 if there is none for it, its name, and how to find the arena."""
        number = self.number(caller)
        if not self.arena or number > NUM_SEATS:
            return 0, "", "", b"", 0
        return number, caller.party.name, self.arena.place, self.arena.mark, layout()

    def number(self, caller: DepotCaller) -> int:
        """Return the number of a caller: that of its seat, or a higher one if it has none."""
        number = self._numbers.get(caller.party.process)
        if number is None:
            seat = self.arena.take_seat() if self.arena and caller.link.stream.carries_fds else 0
            number = self._numbers[caller.party.process] = seat or next(self._others)
            self._callers[number] = caller
        return number

    def number_of(self, process: str) -> int | None:
        """Return the number of a caller by `Party.process`; None if it has none."""
        return self._numbers.get(process)

    def process_of(self, number: int) -> str:
        """Return the `Party.process` of a caller by its number; "" if it is gone."""
        caller = self._callers.get(number)
        return caller.party.process if caller else ""

    def name_of(self, number: int) -> str:
        """Return the name of a caller for messages."""
        caller = self._callers.get(number)
        return caller.party.name if caller else "a process"

    def gone(self, caller: DepotCaller) -> None:
        """Free the seat of a caller that is gone; all states have been told."""
        number = self._numbers.pop(caller.party.process, None)
        if number is not None:
            del self._callers[number]
            if self.arena and number <= NUM_SEATS:
                self.arena.free_seat(number)


class RecordedState:
    """A state in shared memory, as the depot calls it.

    Args:
        callers: the numbers of callers.
        kind: the kind of the state, as a client asks for it.
        slot: the place of its record.
        first: the lock of a condition, which is in the same record.
    """

    METHODS: ClassVar[frozenset[str]] = (
        LockState.METHODS | SemaphoreState.METHODS | EventState.METHODS | ConditionState.METHODS | BarrierState.METHODS
    )
    """Those of all kinds; one that its own kind lacks raises AttributeError at its caller."""
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, callers: DepotCallers, kind: str, slot: int, first: RecordedState | None = None) -> None:
        assert callers.arena
        self.slot = slot
        self.part = 0
        """Which state in the record it is; see `RecordedStates.part`."""
        self._arena = callers.arena
        self._callers = callers
        self._record = SharedRecord(callers.arena, slot)
        self._parts = itertools.count(1)
        self._numbers = itertools.count(NUM_BERTHS)
        self._asking: dict[WaiterKey, Waiter] = {}
        self._waiting: set[WaiterKey] = set()
        self._keys: dict[Waiter, WaiterKey] = {}
        if first:
            self.part = next(first._parts)
            self._numbers, self._asking = first._numbers, first._asking
            self._waiting, self._keys = first._waiting, first._keys
        for name in self.METHODS:
            setattr(self, name, functools.partial(self._call, name))

    @staticmethod
    def first_form(kind: str, args: tuple[Any, ...]) -> tuple[int, int, Resting]:
        """Return the number of a kind, the bound and the state at rest of a new object; raises as its constructor."""
        return _beginning(kind, *args)

    def begin(self, target: int, form: tuple[int, int, Resting]) -> None:
        """Write the first state."""
        self._record.begin(target, *form)

    def _call(self, method: str, waiter: Any, *args: Any) -> list[CallOutcome]:
        key = self._callers.number(waiter.caller), next(self._numbers), waiter.party.thread
        outcome, others = self._change(lambda states: states.decide(self.part, method, key, args), key)
        self._asking[key], self._keys[waiter] = waiter, key
        if outcome is None:
            self._waiting.add(key)
            return others
        if not outcome.lent:
            self._forget(waiter)
        return [CallOutcome(waiter, outcome.value, error=outcome.error, lent=outcome.lent), *others]

    def rung(self) -> list[CallOutcome]:
        """Return the outcomes of calls that processes of this host have ended."""
        return self._change(lambda _: None)[1]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a call, or take back what was lent to it; see `SharedState`."""
        key = self._keys.get(waiter)
        if key is None:
            return []
        ended, others = self._change(lambda states: states.give_up(self.part, key, timed_out), key)
        if not timed_out or ended:
            self._forget(waiter)
        return [*([replace(ended, waiter=waiter)] if ended and timed_out else []), *others]

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Record that the value lent to this call has arrived."""
        key = self._keys.get(waiter)
        if key is None:
            return []
        self._forget(waiter)
        return self._change(lambda states: states.taken(self.part, key))[1]

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Handle the end of a process, and wake all threads whose calls have ended: it may have died before it did."""
        number = self._callers.number_of(process)
        if number is None:
            return []
        for key, waiter in list(self._asking.items()):
            if key[0] == number:
                self._forget(waiter)
        others = self._change(lambda states: states.party_gone(number, name))[1]
        for waiter in self._record.look(lambda states: list(states.ended)):
            if waiter.number < NUM_BERTHS:
                post(self._arena.berth(waiter.key[0], waiter.number))
        return others

    def close(self) -> None:
        """Give the record back."""
        if not self.part:
            self._record.words[TARGET] = 0
            self._arena.free_record(self.slot)

    def _forget(self, waiter: Waiter) -> None:
        key = self._keys.pop(waiter)
        self._asking.pop(key, None)
        self._waiting.discard(key)

    def _change(
        self, decide: Callable[[RecordedStates], Any], own: WaiterKey | None = None
    ) -> tuple[Any, list[CallOutcome]]:
        """Change the record; returns the outcomes of calls that are kept here, and wakes threads of this host."""
        waiters = WaiterTable(self._callers.name_of)

        def do(states: RecordedStates) -> tuple[Any, list[RecordedWaiter], list[tuple[WaiterKey, EndedCall]]]:
            made = decide(states)
            ended = [(key, taken) for key in self._waiting if key != own and (taken := states.take(key))]
            return made, states.woken, ended

        made, woken, ended = self._record.change(do, waiters)
        for waiter in woken:
            if waiter.number < NUM_BERTHS:
                post(self._arena.berth(waiter.key[0], waiter.number))
        return made, [self._outcome(key, *taken) for key, taken in ended]

    def _outcome(self, key: WaiterKey, value: Any, lent: bool, problem: str) -> CallOutcome:
        waiter = self._asking[key]
        self._waiting.discard(key)
        if not lent:
            self._forget(waiter)
        return CallOutcome(waiter, value, error=error_of(problem), lent=lent)


def _beginning(kind: str, *args: Any) -> tuple[int, int, Resting]:
    """Return the number of a kind, the bound and the state at rest of a new object."""
    state: Any = KINDS[kind](*args)  # refuses wrong arguments
    resting = state.resting
    if kind == "lock":
        return RECURSIVE_LOCK if args and args[0] else LOCK, -1, resting
    if kind == "semaphore":
        return SEMAPHORE, args[1] if len(args) > 1 and args[1] is not None else -1, resting
    if kind == "barrier":
        return BARRIER, args[0], resting
    return EVENT, -1, resting


RECORDED = frozenset({"lock", "semaphore", "event", "condition", "barrier"})
"""The kinds of objects whose state is in shared memory."""


__all__ = ["RECORDED", "DepotCallers", "RecordedState"]
