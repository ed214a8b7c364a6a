"""Calls that wait at a semaphore while all of them are of this host: no state is restored to wake one of them.

    ring   │ 0 · A · B │ C · 0 · D │         a call is one word: its process and its number there; 0: it is over
           head        middle      tail
           granted, and not taken yet │ waiting, in turn

    enter ─▶ D is written, tail + 1      grant ─▶ middle moves past C, C is woken      take ─▶ its word becomes 0

The three places are one word of the record, so that each change is one store: a process that is killed at any step has
made it or not, and the next owner of the mutex has nothing to repair. While calls wait, the count is zero. A call of
another host, a death and an interrupt are left to the states: these make of the ring their own form
(`SharedRecord.change`), in which the record stays until no call waits any more.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ropewalk.sharing.record_words import (
    BOUND,
    FIRST,
    NUM_WAITING,
    NUMBER_BITS,
    PLACE_BITS,
    PLACES,
    PRESENT,
    QUEUE,
    RING,
    RING_LENGTH,
)
from ropewalk.transport.process_mutex import lock_despite, trylock, unlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.sharing.shared_record import SharedRecord
    from ropewalk.sharing.states.waiting import WaiterKey


class PermitSeen(Enum):
    """What is seen of a call that has entered."""

    WAITS = "waits"
    GRANTED = "granted"
    """It has its permit now."""
    WITHDRAWN = "withdrawn"
    ELSEWHERE = "elsewhere"
    """The states have it."""


class PermitCall:
    """A call that acquires a semaphore; may enter again when it is over.

    Args:
        process: the seat of its process.
        number: its number there.
    """

    def __init__(self, process: int, number: int) -> None:
        self.entry = process << NUMBER_BITS | number
        """Its word in the ring."""
        self.place: int
        """Its place there."""
        self.is_taken = False
        """Whether it has taken its permit; whoever uses it again sets this back."""


def enter(record: SharedRecord, call: PermitCall) -> bool:
    """Have a call wait; returns whether it does: not if there is a permit, no room, or the states have calls."""
    words, mutex, entry = record.words, record.mutex, call.entry
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            queue = words[QUEUE]
            head, middle = queue & PLACES, queue >> PLACE_BITS & PLACES
            tail = middle + (queue >> NUM_WAITING) & PLACES
            if words[PRESENT] or words[FIRST] or tail - head & PLACES >= RING_LENGTH:
                return False
            while middle != tail and not words[RING + middle % RING_LENGTH]:  # calls that are over
                middle = middle + 1 & PLACES
            while head != middle and not words[RING + head % RING_LENGTH]:
                head = head + 1 & PLACES
            queue = head | middle << PLACE_BITS | (tail + 1 - middle & PLACES) << NUM_WAITING
            if not record.is_touched:
                call.place = tail
                words[RING + tail % RING_LENGTH] = entry
                words[QUEUE] = queue
                record.is_touched = True
                return True
        finally:
            unlock(mutex)


def grant(record: SharedRecord) -> int | None:
    """Add one to the count, or grant the permit to the call that has waited longest.

    Returns:
        The word of that call, which is to be woken; 0 if no call waits; None if nothing was done, because the states
        have to do it.
    """
    words, mutex = record.words, record.mutex
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            count, bound = words[FIRST] + 1, words[BOUND]
            if words[PRESENT] or 0 <= bound < count:
                return None
            queue = words[QUEUE]
            head, middle, num_waiting = queue & PLACES, queue >> PLACE_BITS & PLACES, queue >> NUM_WAITING
            found = 0
            while num_waiting and not found:
                found = words[RING + middle % RING_LENGTH]  # 0: a call that is over
                middle = middle + 1 & PLACES
                num_waiting -= 1
            queue = head | middle << PLACE_BITS | num_waiting << NUM_WAITING
            if not record.is_touched:
                if found:
                    words[QUEUE] = queue
                else:
                    words[FIRST] = count
                record.is_touched = True
                return found
        finally:
            unlock(mutex)


def take(record: SharedRecord, call: PermitCall, give_up: bool) -> PermitSeen:
    """Take the permit of a call that has entered, if it was granted one; otherwise `give_up` ends its wait."""
    words, mutex, place = record.words, record.mutex, call.place
    at = RING + place % RING_LENGTH
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            record.is_touched = False
            if words[PRESENT]:
                return PermitSeen.ELSEWHERE
            middle = words[QUEUE] >> PLACE_BITS & PLACES
            is_granted = 0 < (middle - place & PLACES) <= RING_LENGTH
            if not is_granted and not give_up:
                return PermitSeen.WAITS
            if not record.is_touched:
                call.is_taken = is_granted
                words[at] = 0
                record.is_touched = True
                return PermitSeen.GRANTED if is_granted else PermitSeen.WITHDRAWN
        finally:
            unlock(mutex)


def calls_in(words: Sequence[int]) -> tuple[list[WaiterKey], list[WaiterKey]]:
    """Return the calls that wait, and those that were granted a permit and have not taken it, in their order."""
    head, middle, tail = _places(words[QUEUE])
    return _keys(words, middle, tail), _keys(words, head, middle)


def _keys(words: Sequence[int], first: int, last: int) -> list[WaiterKey]:
    entries = [words[RING + (first + index) % RING_LENGTH] for index in range(last - first & PLACES)]
    return [(entry >> NUMBER_BITS, entry & (1 << NUMBER_BITS) - 1, 0) for entry in entries if entry]


def _places(queue: int) -> tuple[int, int, int]:
    middle = queue >> PLACE_BITS & PLACES
    return queue & PLACES, middle, middle + (queue >> NUM_WAITING) & PLACES


__all__ = ["PermitCall", "PermitSeen", "calls_in", "enter", "grant", "take"]
