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

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ropewalk.sharing.record_words import BOUND, FIRST, PRESENT, QUEUE, RING, RING_LENGTH
from ropewalk.transport.process_mutex import lock, unlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.sharing.shared_record import SharedRecord
    from ropewalk.sharing.states.waiting import WaiterKey

_PLACE_BITS = 20
_PLACES = (1 << _PLACE_BITS) - 1
"""Places are counted modulo 2**20, a multiple of the ring's length."""
_NUMBER_BITS = 8
NUM_WAITING = 2 * _PLACE_BITS
"""The number of words between middle and tail is the word with the places, shifted to the right by this."""


class PermitSeen(Enum):
    """What is seen of a call that has entered."""

    WAITS = "waits"
    GRANTED = "granted"
    """It has its permit now."""
    WITHDRAWN = "withdrawn"
    ELSEWHERE = "elsewhere"
    """The states have it."""


@dataclass(slots=True)
class PermitCall:
    """A call that acquires a semaphore."""

    process: int
    """The seat of its process."""
    number: int
    """Its number there."""
    place: int = 0
    """Its place in the ring."""
    is_taken: bool = False
    """Whether it has taken its permit."""


def enter(record: SharedRecord, call: PermitCall) -> bool:
    """Have a call wait; returns whether it does: not if there is a permit, no room, or the states have calls."""
    words = record.words
    entry = call.process << _NUMBER_BITS | call.number
    while True:
        lock(record.mutex)
        try:
            record.is_touched = False
            head, middle, tail = _places(words[QUEUE])
            if words[PRESENT] or words[FIRST] or tail - head & _PLACES >= RING_LENGTH:
                return False
            queue = _with_one_more(words)
            at = RING + tail % RING_LENGTH
            if not record.is_touched:
                call.place = tail
                words[at] = entry
                words[QUEUE] = queue
                record.is_touched = True
                return True
        finally:
            unlock(record.mutex)


def grant(record: SharedRecord) -> tuple[int, int] | None:
    """Add one to the count, or grant the permit to the call that has waited longest.

    Returns:
        The process and the number of that call, which is to be woken; zeros if no call waits; None if nothing was done,
        because the states have to do it.
    """
    words = record.words
    while True:
        lock(record.mutex)
        try:
            record.is_touched = False
            count, bound = words[FIRST] + 1, words[BOUND]
            if words[PRESENT] or 0 <= bound < count:
                return None
            head, middle, tail = _places(words[QUEUE])
            while middle != tail and not words[RING + middle % RING_LENGTH]:
                middle = middle + 1 & _PLACES
            found = 0 if middle == tail else words[RING + middle % RING_LENGTH]
            queue = _word(head, middle + 1, tail) if found else 0
            if not record.is_touched:
                if found:
                    words[QUEUE] = queue
                else:
                    words[FIRST] = count
                record.is_touched = True
                return found >> _NUMBER_BITS, found & (1 << _NUMBER_BITS) - 1
        finally:
            unlock(record.mutex)


def take(record: SharedRecord, call: PermitCall, give_up: bool) -> PermitSeen:
    """Take the permit of a call that has entered, if it was granted one; otherwise `give_up` ends its wait."""
    words, place = record.words, call.place
    at = RING + place % RING_LENGTH
    while True:
        lock(record.mutex)
        try:
            record.is_touched = False
            if words[PRESENT]:
                return PermitSeen.ELSEWHERE
            middle = words[QUEUE] >> _PLACE_BITS & _PLACES
            is_granted = 0 < (middle - place & _PLACES) <= RING_LENGTH
            if not is_granted and not give_up:
                return PermitSeen.WAITS
            if not record.is_touched:
                call.is_taken = is_granted
                words[at] = 0
                record.is_touched = True
                return PermitSeen.GRANTED if is_granted else PermitSeen.WITHDRAWN
        finally:
            unlock(record.mutex)


def is_over(words: Sequence[int]) -> bool:
    """Whether all calls in the ring are over."""
    waiting, granted = calls_in(words)
    return not waiting and not granted


def calls_in(words: Sequence[int]) -> tuple[list[WaiterKey], list[WaiterKey]]:
    """Return the calls that wait, and those that were granted a permit and have not taken it, in their order."""
    head, middle, tail = _places(words[QUEUE])
    return _keys(words, middle, tail), _keys(words, head, middle)


def _keys(words: Sequence[int], first: int, last: int) -> list[WaiterKey]:
    entries = [words[RING + (first + index) % RING_LENGTH] for index in range(last - first & _PLACES)]
    return [(entry >> _NUMBER_BITS, entry & (1 << _NUMBER_BITS) - 1, 0) for entry in entries if entry]


def _with_one_more(words: Sequence[int]) -> int:
    """Return the places after one more call has entered, without calls that are over at the front of either part."""
    head, middle, tail = _places(words[QUEUE])
    while middle != tail and not words[RING + middle % RING_LENGTH]:
        middle = middle + 1 & _PLACES
    while head != middle and not words[RING + head % RING_LENGTH]:
        head = head + 1 & _PLACES
    return _word(head, middle, tail + 1)


def _places(queue: int) -> tuple[int, int, int]:
    middle = queue >> _PLACE_BITS & _PLACES
    return queue & _PLACES, middle, middle + (queue >> NUM_WAITING) & _PLACES


def _word(head: int, middle: int, tail: int) -> int:
    return head | (middle & _PLACES) << _PLACE_BITS | (tail - middle & _PLACES) << NUM_WAITING


__all__ = ["NUM_WAITING", "PermitCall", "PermitSeen", "calls_in", "enter", "grant", "is_over", "take"]
