"""Calls that wait for a lock or at its conditions while all are of this host: no state is restored to wake them.

    claims    │ A │ B · C · D │      sleepers  │ 0 · E · F │      a call is two words: its process, its number there,
              head middle     tail             head        tail   the condition and the depth; and its thread
              granted │ waiting, in turn       0: its wait is over

    claim ─▶ D, tail + 1     release ─▶ middle + 1: B is the owner, and is woken     take ─▶ the owner's words, 0 for B
    wait ─▶ F, release       notify ─▶ E is a claim, 0 for E

At most one claim is granted and not taken: that call is the owner then, whatever the owner's words say. Each change is
one store, or several whose order leaves nothing to repair if their process, which owns the lock, dies between them: it
still owns the lock then, so nobody else has seen the first one before the depot frees the lock, with all states. A
timeout, an interrupt, a death and a call of another host are left to the states, as in `permit_ring.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.sharing.record_words import (
    FIRST,
    NUM_WAITING,
    NUMBER_BITS,
    PLACE_BITS,
    PLACES,
    PRESENT,
    QUEUE,
    RING,
    RING_LENGTH,
    SECOND,
    SLEEPERS,
    SLEEPING,
    THIRD,
)
from ropewalk.transport.process_mutex import lock_despite, trylock, unlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.sharing.shared_record import SharedRecord
    from ropewalk.sharing.states.recorded import RingCall

NUM_CALLS = RING_LENGTH // 2
"""The calls for which each ring has room."""
_PART_AT, _DEPTH_AT = 20, 32
CALL = (1 << _PART_AT) - 1
"""The bits of a call's first word that say which call it is: its process and its number there."""
_PART = (1 << _DEPTH_AT - _PART_AT) - 1


class LockCall:
    """A call that acquires a lock, or waits at one of its conditions; may be used again when it is over.

    Args:
        process: the seat of its process.
        number: its number there.
    """

    def __init__(self, process: int, number: int) -> None:
        self.process = process
        self.entry = process << NUMBER_BITS | number
        """Its first word, without condition and depth."""
        self.is_claim: bool
        """Whether it acquires a lock, and does not wait at a condition."""
        self.is_taken = False
        """Whether it owns the lock now, or again; whoever uses it again sets this back."""


def claim(record: SharedRecord, call: LockCall, thread: int, recursive: bool) -> bool:
    """Have a call wait for a lock; returns whether it does: not if the lock is free, or the states have calls."""
    words, mutex = record.words, record.mutex
    call.is_claim = True
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue = words[QUEUE]
            head, middle, num_waiting = queue & PLACES, queue >> PLACE_BITS & PLACES, queue >> NUM_WAITING
            tail = middle + num_waiting & PLACES
            is_mine = recursive and words[FIRST] == call.process and words[SECOND] == thread
            if words[PRESENT] or not words[FIRST] or is_mine or tail - head & PLACES >= NUM_CALLS:
                return False
            at = RING + tail % NUM_CALLS * 2
            if not record.is_touched:
                words[at] = call.entry | 1 << _DEPTH_AT
                words[at + 1] = thread
                words[QUEUE] = queue + (1 << NUM_WAITING)
                record.is_touched = True
                return True
        finally:
            unlock(mutex)


def release(record: SharedRecord, process: int, thread: int, recursive: bool) -> int | None:
    """Release a lock once, or give it to the call that has waited longest.

    Returns:
        The word of the call that is to be woken; 0 for none; None if nothing was done, because the states have to.
    """
    words, mutex = record.words, record.mutex
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue, owner = words[QUEUE], words[FIRST]
            middle = queue >> PLACE_BITS & PLACES
            if words[PRESENT] or not owner or queue & PLACES != middle:
                return None
            if recursive and (owner != process or words[SECOND] != thread):
                return None
            depth = words[THIRD]
            found, given = _next(words) if queue >> NUM_WAITING else (0, 0)
            if not record.is_touched:
                record.is_touched = True
                if depth > 1:
                    words[THIRD] = depth - 1
                    return 0
                if not found:
                    words[QUEUE] = 0
                    words[FIRST] = 0
                    return 0
                words[SECOND] = 0  # the owner's words are no thread's any more
                words[QUEUE] = given
                return found
        finally:
            unlock(mutex)


def wait(record: SharedRecord, call: LockCall, thread: int, part: int) -> int | None:
    """Have a call wait at a condition, and release its lock altogether; returns as `release`."""
    words, mutex = record.words, record.mutex
    call.is_claim = False
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue, sleepers, depth = words[QUEUE], words[SLEEPERS], words[THIRD]
            middle = queue >> PLACE_BITS & PLACES
            head, tail = sleepers & PLACES, sleepers >> PLACE_BITS
            if words[PRESENT] or words[FIRST] != call.process or words[SECOND] != thread or part > _PART:
                return None
            if queue & PLACES != middle or tail - head & PLACES >= NUM_CALLS:
                return None
            while head != tail and not words[SLEEPING + head % NUM_CALLS * 2]:
                head = head + 1 & PLACES
            at = SLEEPING + tail % NUM_CALLS * 2
            found, given = _next(words) if queue >> NUM_WAITING else (0, 0)
            sleepers = head | (tail + 1 & PLACES) << PLACE_BITS
            if not record.is_touched:
                record.is_touched = True
                words[at] = call.entry | part << _PART_AT | depth << _DEPTH_AT
                words[at + 1] = thread
                words[SLEEPERS] = sleepers
                if not found:
                    words[QUEUE] = 0
                    words[FIRST] = 0
                    return 0
                words[SECOND] = 0
                words[QUEUE] = given
                return found
        finally:
            unlock(mutex)


def notify(record: SharedRecord, process: int, thread: int, part: int) -> bool | None:
    """Make the call that has waited longest at a condition a claim.

    Returns:
        Whether there was one; None if the states have to do it.
    """
    words, mutex = record.words, record.mutex
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue, sleepers = words[QUEUE], words[SLEEPERS]
            middle, num_waiting = queue >> PLACE_BITS & PLACES, queue >> NUM_WAITING
            if words[PRESENT] or words[FIRST] != process or words[SECOND] != thread or part > _PART:
                return None
            if queue & PLACES != middle or num_waiting >= NUM_CALLS:
                return None
            head, tail, entry, at = sleepers & PLACES, sleepers >> PLACE_BITS, 0, 0
            while head != tail and entry >> _PART_AT & _PART != part:
                at = SLEEPING + head % NUM_CALLS * 2
                entry = words[at]
                head = head + 1 & PLACES
            if entry >> _PART_AT & _PART != part:
                return False
            to = RING + (middle + num_waiting & PLACES) % NUM_CALLS * 2
            if not record.is_touched:
                record.is_touched = True
                words[to] = entry
                words[to + 1] = words[at + 1]
                words[QUEUE] = queue + (1 << NUM_WAITING)
                words[at] = 0
                return True
        finally:
            unlock(mutex)


def take(record: SharedRecord, call: LockCall, thread: int) -> bool | None:
    """Own the lock, if it was given to this call.

    Returns:
        Whether that was done; None if the states have the call.
    """
    words, mutex = record.words, record.mutex
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue = words[QUEUE]
            middle = queue >> PLACE_BITS & PLACES
            at = RING + (middle - 1 & PLACES) % NUM_CALLS * 2
            entry = words[at]
            if words[PRESENT]:
                return None
            if queue & PLACES == middle or entry & CALL != call.entry:
                return False
            queue = middle | queue & ~PLACES if queue >> NUM_WAITING else 0
            if not record.is_touched:
                record.is_touched = call.is_taken = True
                words[SECOND] = thread
                words[THIRD] = entry >> _DEPTH_AT
                words[FIRST] = call.process
                words[at] = 0
                words[QUEUE] = queue
                return True
        finally:
            unlock(mutex)


def withdraw(record: SharedRecord, call: LockCall) -> bool:
    """End the wait of a call that acquires a lock; False if it was granted the lock, or if the states have it."""
    words, mutex = record.words, record.mutex
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue = words[QUEUE]
            middle, num_waiting, found = queue >> PLACE_BITS & PLACES, queue >> NUM_WAITING, 0
            while num_waiting and not found:
                at = RING + middle % NUM_CALLS * 2
                found = at if words[at] & CALL == call.entry else 0
                middle, num_waiting = middle + 1 & PLACES, num_waiting - 1
            if words[PRESENT] or not found:
                return False
            if not record.is_touched:
                words[found] = 0
                record.is_touched = True
                return True
        finally:
            unlock(mutex)


def _next(words: Sequence[int]) -> tuple[int, int]:
    """Return the first word of the claim that has waited longest (0: none), and the places when it has its lock."""
    queue = words[QUEUE]
    middle, num_waiting, found = queue >> PLACE_BITS & PLACES, queue >> NUM_WAITING, 0
    first = middle
    while num_waiting and not found:
        found, first = words[RING + middle % NUM_CALLS * 2], middle
        middle, num_waiting = middle + 1 & PLACES, num_waiting - 1
    return found, first | middle << PLACE_BITS | num_waiting << NUM_WAITING


def place_of(entry: int) -> tuple[int, int]:
    """Return the process of a call and its number there, by its first word."""
    return entry >> NUMBER_BITS & (CALL >> NUMBER_BITS), entry & (1 << NUMBER_BITS) - 1


def calls_in(words: Sequence[int]) -> tuple[list[RingCall], list[RingCall], list[RingCall]]:
    """Return the call that was granted the lock, the claims that wait, and the sleepers, each in their order."""
    queue, sleepers = words[QUEUE], words[SLEEPERS]
    head, middle = queue & PLACES, queue >> PLACE_BITS & PLACES
    granted = _calls(words, RING, head, middle - head & PLACES)
    waiting = _calls(words, RING, middle, queue >> NUM_WAITING)
    sleeping = _calls(words, SLEEPING, sleepers & PLACES, (sleepers >> PLACE_BITS) - sleepers & PLACES)
    claiming = {call[0] for call in (*granted, *waiting)}
    return granted, waiting, [call for call in sleeping if call[0] not in claiming]


def _calls(words: Sequence[int], ring: int, first: int, num: int) -> list[RingCall]:
    calls = list[tuple[tuple[int, int, int], int, int]]()
    for index in range(num):
        at = ring + (first + index) % NUM_CALLS * 2
        if entry := words[at]:
            calls.append(((*place_of(entry), words[at + 1]), entry >> _PART_AT & _PART, entry >> _DEPTH_AT))
    return calls


__all__ = [
    "CALL",
    "NUM_CALLS",
    "LockCall",
    "calls_in",
    "claim",
    "notify",
    "place_of",
    "release",
    "take",
    "wait",
    "withdraw",
]
