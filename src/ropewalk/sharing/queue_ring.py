"""Calls to a queue of this host, in memory that its processes share: what becomes of its items (`queue_memory.py`).

Nothing is granted: **the first call of `get` has the first item, the second one the second**, if there are that many,
and in the same way calls of `put` have the places that are free. So a call that goes away leaves what it would have had
to the one behind it. A call takes its own item also before the calls ahead of it have taken theirs.

Each change is one store, of PUTS, GETS or the header of a run: a process that is killed at any step has made it or not,
and the next owner of the mutex has nothing to repair. (The word of a call is cleared before its item is taken, so a
call that was killed in between has taken nothing.) A handler of a signal may use the queue in the middle of a change:
the mutex is recursive, and the outer change sees another version and starts anew. Where no call waits, a change has no
such moment: Python handles signals after calls and at the end of turns of loops.

Items for which there is no room, large ones, and calls of other hosts are left to the depot, which then takes the queue
over (`ringed_queue.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.sharing.queue_memory import (
    CALL,
    CELL,
    COUNT_AT,
    COUNTS,
    FULL,
    GET,
    GO_ROUND,
    HEADER_BYTES,
    JOIN,
    JOINED,
    LENGTH,
    ONE,
    PARTS_AT,
    PUT,
    RUN,
    RUN_ITEMS,
    QueueRing,
    side,
)
from ropewalk.sharing.record_words import (
    AHEAD,
    BOUND,
    FINISHED,
    GETS,
    NUMBER_BITS,
    PLACE_BITS,
    PLACES,
    PRESENT,
    PUTS,
    PUTTERS,
    PUTTERS_RING,
    QUEUE,
    RING,
    RING_LENGTH,
)
from ropewalk.transport.process_mutex import lock, lock_despite, trylock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropewalk.transport.frames import Part

WAITS, REFUSED, ELSEWHERE = -1, -2, -3
"""What becomes of a call, where it is not over: it waits now; it would have to wait; its depot has to make it."""
OTHER = 48
"""The width of a word, above which there may be another one."""
MOST_BYTES = 512 << 10
"""The largest item that is kept here, in bytes: the others would wait while it is copied."""

Hand = list["tuple[bytes, int] | None"]
"""Where an item is when it was taken: its content and the number of its parts; None before."""


class RingCall:
    """A call that may have to wait.

    Args:
        process: the seat of its process.
        number: its number there.
        what: GET, PUT or JOIN.
    """

    def __init__(self, process: int, number: int, what: int) -> None:
        self.word = process << NUMBER_BITS | number | what
        self.queue, self.calls = side(what)
        self.place = -1
        """Its place among the calls, once it waits."""


def put(ring: QueueRing, content: Part, num_parts: int, call: RingCall | None = None) -> int:
    """Put an item at the end.

    Args:
        ring: the queue.
        content: the item; see `sealed`.
        num_parts: the number of its parts.
        call: waits for its turn, if it has to.

    Returns:
        The word of the call that is to be woken, 0 for none, and above the bits `OTHER` that of another one; or WAITS,
        REFUSED, ELSEWHERE.
    """
    words, mutex, length = ring.words, ring.mutex, len(content)
    num_cells = length + 15 >> 3
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            if words[PRESENT] or length > MOST_BYTES:
                return ELSEWHERE
            puts, gets, bound, woken, left = words[PUTS], words[GETS], words[BOUND], 0, 0
            count = (puts >> COUNT_AT) - (gets >> COUNT_AT) & COUNTS
            waiting = words[QUEUE]
            if (
                call
                or (bound and (count >= bound or words[PUTTERS]))
                # While there is an item for each call that waits, all of these were woken.
                or (waiting and (words[AHEAD] or count < ((waiting >> PLACE_BITS) - waiting & PLACES)))
            ):
                version = ring.version
                woken, left = _turn_to_put(ring, call, version)
                if _AGAIN != woken < 0:
                    return woken
                if ring.version != version:
                    continue
            # No other code runs from here on, except after `return`.
            head, tail = gets & CELL, puts & CELL
            at = tail
            if not count:
                words[GETS], at = gets - head, 0
            elif tail + num_cells > (ring.num_cells if head <= tail else head - 1):
                if not num_cells < head <= tail:
                    return ELSEWHERE
                if tail < ring.num_cells:
                    ring.headers[tail] = GO_ROUND
                at = 0
            start = 8 * at + HEADER_BYTES
            ring.headers[at] = length | num_parts << PARTS_AT
            ring.memory[start : start + length] = content
            if call and call.place >= 0:
                words[PUTTERS_RING + call.place % RING_LENGTH] = 0
                words[PUTTERS] = left
            words[PUTS] = puts - tail + at + num_cells + ONE & FULL
            ring.version += 1
            return woken
        finally:
            unlock(mutex)


def get(ring: QueueRing, hand: Hand, call: RingCall | None = None) -> int:
    """Take the first item, or the one whose turn it is.

    Args:
        ring: the queue.
        hand: receives the content of the item and the number of its parts.
        call: waits for its turn, if it has to.

    Returns:
        The word of the call that is to be woken, 0 for none; or WAITS, REFUSED, ELSEWHERE.
    """
    words, mutex, headers = ring.words, ring.mutex, ring.headers
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            if words[PRESENT]:
                return ELSEWHERE
            puts, gets, woken = words[PUTS], words[GETS], 0
            if call or words[QUEUE] or words[AHEAD]:
                found = _get_in_turn(ring, hand, call)
                if found == _AGAIN:
                    continue
                return found
            if not (puts ^ gets) >> COUNT_AT:
                return REFUSED
            if (waiting := words[PUTTERS]) and (bound := words[BOUND]):
                count = (puts >> COUNT_AT) - (gets >> COUNT_AT) & COUNTS
                if bound - count < ((waiting >> PLACE_BITS) - waiting & PLACES):
                    version = ring.version
                    woken = _next_putter(ring, count)
                    if ring.version != version:
                        continue
            # No other code runs from here on, except after `return`.
            at = head = gets & CELL
            if at == ring.num_cells or headers[at] == GO_ROUND:
                at = 0
            header, start = headers[at], 8 * at + HEADER_BYTES
            length = header & LENGTH
            item = ring.memory[start : start + length], header >> PARTS_AT
            words[GETS] = gets - head + at + (length + 15 >> 3) + ONE & FULL
            hand[0] = item
            ring.version += 1
            return woken
        finally:
            unlock(mutex)


def finish(ring: QueueRing) -> int:
    """Count one item as finished.

    Returns:
        0; WAITS if all are finished now, and calls of `join` are to be woken; REFUSED if all were; or ELSEWHERE.
    """
    words, mutex = ring.words, ring.mutex
    try:
        lock(mutex)
        if words[PRESENT]:
            return ELSEWHERE
        finished = words[FINISHED]
        unfinished = (words[PUTS] >> COUNT_AT) - finished & COUNTS
        if not unfinished:
            return REFUSED
        words[FINISHED] = finished + 1 & COUNTS
        ring.version += 1
        return WAITS if unfinished == 1 and _end_joins(ring) else 0
    finally:
        unlock(mutex)


def join(ring: QueueRing, call: RingCall | None) -> int:
    """Return 0 if all items are finished, or were at a time since the call began to wait; otherwise as `put`."""
    words = ring.words
    while True:
        try:
            lock(ring.mutex)
            version = ring.version
            entry = words[PUTTERS_RING + call.place % RING_LENGTH] if call and call.place >= 0 else 0
            if entry and call and entry == call.word ^ JOIN ^ JOINED:
                return 0
            if words[PRESENT] or _before(ring, call, JOIN)[0] < 0:
                return ELSEWHERE
            if not ring.unfinished:
                return 0
            entered = _entered(ring, call, version)
            if entered != _AGAIN:
                return entered
        finally:
            unlock(ring.mutex)


def sizes(ring: QueueRing) -> tuple[int, int] | None:
    """Return the number of items that no call has, and the largest one, 0 for any; None if the depot has the queue."""
    try:
        lock(ring.mutex)
        if ring.words[PRESENT]:
            return None
        return max(ring.count - len(ring.calls(GET)), 0), ring.words[BOUND]
    finally:
        unlock(ring.mutex)


def withdraw(ring: QueueRing, call: RingCall) -> list[int]:
    """End a call that waits; returns the words of the calls whose turn it is now."""
    return _withdrawn(ring, lambda word, place: place == call.place and word & CALL == call.word & CALL)


def drop(ring: QueueRing, process: int) -> list[int]:
    """End the calls of a process; returns the words of the calls whose turn it is now."""
    return _withdrawn(ring, lambda word, _: (word & CALL) >> NUMBER_BITS == process)


def due(ring: QueueRing) -> list[int]:
    """Return the words of the calls whose turn it is."""
    return _withdrawn(ring, lambda _word, _place: False)


# Parts of a change, for the owner of the mutex

_AGAIN = -4
"""There was another change in between."""


def _turn_to_put(ring: QueueRing, call: RingCall | None, version: int) -> tuple[int, int]:
    """Return what `put` returns where calls wait, or where all places seem to be filled; and QUEUE without its call."""
    bound, count, getters, woken = ring.words[BOUND], ring.count, ring.calls(GET), 0
    num_inside = max(count - len(getters), 0)
    num_before, left = _before(ring, call, PUT)
    if num_before < 0:
        return ELSEWHERE, 0
    if len(getters) > count:
        woken = getters[count]
        if call and call.place >= 0:  # its turn is the next one's, as the item fills no place
            woken |= _next_putter(ring, 0) << OTHER
    if bound and num_inside + num_before >= bound:
        return _entered(ring, call, version), 0
    return woken, left


def _get_in_turn(ring: QueueRing, hand: Hand, call: RingCall | None) -> int:
    """Take an item where calls wait, or where items were taken ahead of the head; returns as `get`, or _AGAIN."""
    words, version = ring.words, ring.version
    rank, left = _before(ring, call, GET)
    if rank < 0:
        return ELSEWHERE
    count = ring.count
    if count <= rank:
        return _entered(ring, call, version)
    has_waited = call is not None and call.place >= 0
    woken = 0 if has_waited else _next_putter(ring, count - rank)
    at, run, index = ring.placed(rank)
    end, num_behind = ring.run_behind(at)
    item, gets, num = ring.read(at), words[GETS], 1 + num_behind
    if index:  # it is taken ahead of the head: begins a run, or continues one
        if run >= 0:
            num += ring.headers[run] >> COUNT_AT & RUN_ITEMS
        number = gets >> COUNT_AT
        last = max(index + 1, (words[AHEAD] >> 1) - number & COUNTS if words[AHEAD] else 0)
        ahead = (number + last & COUNTS) << 1 | 1
    else:
        ahead = words[AHEAD]
    if ring.version != version:
        return _AGAIN
    if call and has_waited:
        words[RING + call.place % RING_LENGTH] = 0
        words[QUEUE] = left
    if index:
        words[AHEAD] = ahead
        ring.headers[at if run < 0 else run] = RUN | num << COUNT_AT | end
    else:
        words[GETS] = gets - (gets & CELL) + (num << COUNT_AT) + end & FULL
    hand[0] = item
    ring.version = version + 1
    return woken


def _before(ring: QueueRing, call: RingCall | None, what: int) -> tuple[int, int]:
    """Return how many calls that do the same are before one, -1 if that is over; and QUEUE without it."""
    if call is None or call.place < 0:
        return len(ring.calls(what)), 0
    if ring.words[call.calls + call.place % RING_LENGTH] != call.word:
        return -1, 0
    return len(ring.calls(what, call.place)), _trimmed(ring, what, call.place)


def _trimmed(ring: QueueRing, what: int, without: int = -1) -> int:
    """Return where calls are, without the first ones that are over, and without that at a place; 0 if none is left."""
    words, (queue, calls) = ring.words, side(what)
    first, last = words[queue] & PLACES, words[queue] >> PLACE_BITS
    while first != last and (first == without or not words[calls + first % RING_LENGTH]):
        first = first + 1 & PLACES
    return first | last << PLACE_BITS if first != last else 0


def _entered(ring: QueueRing, call: RingCall | None, version: int) -> int:
    """Have a call wait, which may do so already; _AGAIN if there was a change in between."""
    if call is None:
        return REFUSED
    if call.place >= 0:
        return WAITS
    words, waiting = ring.words, _trimmed(ring, call.word)
    first, last = waiting & PLACES, waiting >> PLACE_BITS
    if last - first & PLACES >= RING_LENGTH:
        return ELSEWHERE
    if ring.version != version:
        return _AGAIN
    words[call.calls + last % RING_LENGTH] = call.word
    words[call.queue] = first | (last + 1 & PLACES) << PLACE_BITS
    call.place = last
    ring.version = version + 1
    return WAITS


def _end_joins(ring: QueueRing) -> bool:
    """End the wait of the calls of `join`; returns whether there are any."""
    words, waiting = ring.words, ring.words[PUTTERS]
    first, last = waiting & PLACES, waiting >> PLACE_BITS
    found = False
    for index in range(last - first & PLACES):
        at = PUTTERS_RING + (first + index) % RING_LENGTH
        if words[at] & JOIN:
            words[at] ^= JOIN | JOINED
            found = True
    return found


def _next_putter(ring: QueueRing, num_inside: int) -> int:
    """Return the word of the call that has a place once an item is taken of those that no call has; 0 for none."""
    bound = ring.words[BOUND]
    putters = ring.calls(PUT)
    return putters[bound - num_inside] if bound and 0 <= bound - num_inside < len(putters) else 0


def _withdrawn(ring: QueueRing, is_over: Callable[[int, int], bool]) -> list[int]:
    """End calls; returns the words of those whose turn it is."""
    words = ring.words
    try:
        lock(ring.mutex)
        if words[PRESENT]:
            return []
        for what in (GET, PUT):
            queue, calls = side(what)
            first, last = words[queue] & PLACES, words[queue] >> PLACE_BITS
            for index in range(last - first & PLACES):
                at = calls + (first + index) % RING_LENGTH
                if words[at] and is_over(words[at], first + index & PLACES):
                    ring.version += 1
                    words[at] = 0
        while True:
            version, left, putters_left = ring.version, _trimmed(ring, GET), _trimmed(ring, PUT)
            count, unfinished = ring.count, ring.unfinished
            getters, putters = ring.calls(GET), ring.calls(PUT)
            joiners = ring.calls(JOINED if unfinished else JOIN | JOINED)
            bound = words[BOUND]
            num_free = max(bound - max(count - len(getters), 0), 0) if bound else 0
            if ring.version == version:
                # No new version: that places are left out where calls are over changes nothing for an outer change.
                words[QUEUE], words[PUTTERS] = left, putters_left
                return [*getters[:count], *putters[:num_free], *joiners]
    finally:
        unlock(ring.mutex)


__all__ = [
    "ELSEWHERE",
    "MOST_BYTES",
    "OTHER",
    "REFUSED",
    "WAITS",
    "Hand",
    "RingCall",
    "drop",
    "due",
    "finish",
    "get",
    "join",
    "put",
    "sizes",
    "withdraw",
]
