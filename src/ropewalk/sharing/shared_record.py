"""A record: the states of an object in memory that the processes of a host share, and how they change.

    mutex │ target kind bound │ present │ three integers, queue │ rings │ buffer A │ buffer B
                                   │ 0: the integers are the state, at rest (no call waits)
                                   │    or calls wait in rings                   see permit_ring.py, lock_rings.py
                                   └ otherwise: a buffer and a length, where all is dumped     see states/recorded.py

A process may be killed at any step. A new state is written where nobody reads, and becomes the present one by the store
of one word, so the next owner of the mutex finds the state before or after, and needs no repair. A handler of a signal
may use the object while its own thread is changing it: the mutex is recursive, and the outer change starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ropewalk.sharing import lock_rings, permit_ring
from ropewalk.sharing.arena import Arena
from ropewalk.sharing.record_words import (
    BOUND,
    BUFFER_A,
    BUFFER_B,
    BUFFER_BYTES,
    FIRST,
    KIND,
    PRESENT,
    QUEUE,
    SECOND,
    SLEEPERS,
    TARGET,
    THIRD,
)
from ropewalk.sharing.states.recorded import (
    SEMAPHORE,
    RecordedStates,
    Resting,
    WaiterTable,
    dumped_event,
    event_waiters,
)
from ropewalk.sharing.states.waiting import WaiterKey
from ropewalk.transport.process_mutex import lock, unlock

_R = TypeVar("_R")


class SharedRecord:
    """One record.

    Args:
        arena: the memory.
        slot: its place there.
    """

    def __init__(self, arena: Arena, slot: int) -> None:
        self.slot = slot
        self.mutex, self._view = arena.record(slot)
        """The address of its mutex."""
        self.words = self._view.cast("q")
        self.is_touched = False
        """Whether a change was made since this was last False; for the owner of the mutex."""

    def begin(self, target: int, kind: int, bound: int, resting: Resting) -> None:
        """Make a zeroed record that of an object.

        Args:
            target: the object's number in its depot.
            kind: of its state; see `states/recorded.py`.
            bound: of a semaphore; -1 if it has none.
            resting: its state.
        """
        self.words[KIND], self.words[BOUND] = kind, bound
        self.words[FIRST], self.words[SECOND], self.words[THIRD] = resting
        self.words[TARGET] = target

    def change(self, decide: Callable[[RecordedStates], _R], waiters: WaiterTable | None = None) -> _R:
        """Have the states decide, and keep what becomes of them.

        Args:
            decide: changes the states; may be called several times, each time with states anew.
            waiters: makes the calls; by default without names.

        Returns:
            What `decide` returned at last.

        Raises:
            OverflowError: too many threads wait.
        """
        while True:
            try:
                lock(self.mutex)
                self.is_touched = False
                states = self._states(waiters or WaiterTable())
                made = decide(states)
                # Rings end by one store, that of PRESENT: the integers come after the dump, with the next change.
                resting = None if self._calls_in_rings() else states.resting
                if self._rest(*resting) if resting else self._keep(states.dumped()):
                    return made
            finally:
                unlock(self.mutex)

    def look(self, see: Callable[[RecordedStates], _R], waiters: WaiterTable | None = None) -> _R:
        """Return what is seen in the states, which are not changed."""
        try:
            lock(self.mutex)
            return see(self._states(waiters or WaiterTable()))
        finally:
            unlock(self.mutex)

    def _states(self, waiters: WaiterTable) -> RecordedStates:
        words = self.words
        kind, bound = words[KIND], words[BOUND]
        if words[PRESENT]:
            return RecordedStates.loaded(kind, bound, waiters, self._blob())
        resting = words[FIRST], words[SECOND], words[THIRD]
        calls: Any = self._calls_in_rings()
        if not calls:
            return RecordedStates.at_rest(kind, bound, waiters, resting)
        if kind == SEMAPHORE:
            return RecordedStates.of_permits(kind, bound, waiters, words[FIRST], *calls)
        return RecordedStates.of_claims(kind, waiters, resting, *calls)

    def _calls_in_rings(self) -> Sequence[Sequence[Any]]:
        """Return the calls in the rings; nothing if all are over, or if the states have them."""
        words = self.words
        if words[PRESENT] or not (words[QUEUE] or words[SLEEPERS]):
            return ()
        calls = permit_ring.calls_in(words) if words[KIND] == SEMAPHORE else lock_rings.calls_in(words)
        return calls if any(calls) else ()

    def _blob(self) -> bytes:
        present = self.words[PRESENT]
        start = BUFFER_B if present < 0 else BUFFER_A
        return bytes(self._view[start : start + abs(present)])

    # Events are not restored while calls wait: two processes that wake each other would spend half of their time on it.

    def set_event(self) -> list[WaiterKey]:
        """Set an event; returns the calls that have waited."""
        while True:
            try:
                lock(self.mutex)
                self.is_touched = False
                woken = event_waiters(self._blob()) if self.words[PRESENT] else []
                if self._rest(1, 0, 0):
                    return woken
            finally:
                unlock(self.mutex)

    def wait_at_event(self, key: WaiterKey) -> bool:
        """Have a call wait at an event that is not set; returns whether it is set."""
        while True:
            try:
                lock(self.mutex)
                self.is_touched = False
                present = self.words[PRESENT]
                if not present and self.words[FIRST]:
                    return True
                waiting = event_waiters(self._blob()) if present else []
                if self._keep(dumped_event([*waiting, key])):
                    return False
            finally:
                unlock(self.mutex)

    # In these two no other code runs after `is_touched` was read: a signal is handled at calls and loops only.

    def _rest(self, first: int, second: int, third: int) -> bool:
        """Write a state at rest; False if there was a change in between."""
        words = self.words
        if self.is_touched:
            return False
        words[SECOND] = second
        words[THIRD] = third
        words[FIRST] = first
        words[QUEUE] = words[SLEEPERS] = 0
        words[PRESENT] = 0
        self.is_touched = True
        return True

    def _keep(self, blob: bytes) -> bool:
        """Write states in which calls wait; False if there was a change in between."""
        length = len(blob)
        if length > BUFFER_BYTES:
            raise OverflowError(f"{length} bytes are needed for the calls that wait, and there are {BUFFER_BYTES}")
        words = self.words
        present = words[PRESENT]
        start, length = (BUFFER_B, -length) if present > 0 else (BUFFER_A, length)
        part = slice(start, start + len(blob))
        if self.is_touched:
            return False
        self._view[part] = blob
        words[PRESENT] = length
        self.is_touched = True
        return True


__all__ = ["SharedRecord"]
