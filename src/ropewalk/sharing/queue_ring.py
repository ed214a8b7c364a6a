"""A queue of this host, in memory that its processes share: items one after the other, and the calls that wait.

    items    │ · · ·│ 3 │ · │ 5 │ 6 │ · · · │       GETS: how many were taken up to the head, and its place
                    head            tail            PUTS: how many were put, and the place behind them

    getters  │ 0 · B · D │      putters  │ C · join E · F │        calls that wait, in their turn; 0: it is over

Nothing is granted: **the first call of `get` has the first item, the second one the second**, if there are that many,
and in the same way calls of `put` have the places that are free. So a call that goes away leaves what it would have had
to the one behind it. A call takes its own item also before the calls ahead of it have taken theirs: the items that were
taken ahead of the head are then a *run*, whose first header says where it ends, until the head has come there.

Each change is one store, of PUTS, GETS or the header of a run: a process that is killed at any step has made it or not,
and the next owner of the mutex has nothing to repair. (The word of a call is cleared before its item is taken, so a
call that was killed in between has taken nothing.) A handler of a signal may use the queue in the middle of a change:
the mutex is recursive, and the outer change sees another version and starts anew. Where no call waits, a change has no
such moment: Python handles signals after calls and at the end of turns of loops.

Items for which there is no room, large ones, and calls of other hosts are left to the depot, which then takes the queue
over (`ringed_queue.py`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ropewalk.sharing.arena import ITEM_BYTES
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
    TARGET,
)
from ropewalk.transport.process_mutex import lock, lock_despite, trylock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropewalk.sharing.arena import Arena
    from ropewalk.transport.frames import Part

WAITS, REFUSED, ELSEWHERE = -1, -2, -3
"""What becomes of a call, where it is not over: it waits now; it would have to wait; its depot has to make it."""
GET, PUT, JOIN, JOINED = 1 << 40, 1 << 41, 1 << 42, 1 << 43
"""What a call does: a bit of its word. A call of `join` whose wait is over has another one than before."""
CALL = (1 << 40) - 1
"""The bits of a call's word that say which call it is: its process and its number there."""
OTHER = 48
"""The width of a word, above which there may be another one."""
MOST_BYTES = 512 << 10
"""The largest item that is kept here, in bytes: the others would wait while it is copied."""
NUM_CELLS = ITEM_BYTES // 8
"""The memory of the items in *cells* of eight bytes, in which they are placed: a header, then the content."""
_LENGTHS = struct.Struct("=q")
HEADER_BYTES = 8
"""Bytes before the content of each item."""
_PARTS_AT = 32
_LENGTH = (1 << _PARTS_AT) - 1
_GO_ROUND = -1
"""Stands for a header behind the last item before the end: the next item is at the beginning."""
_COUNT_AT = 22
_CELL = (1 << _COUNT_AT) - 1
"""The bits of PUTS, GETS and of the header of a run that are a place, in cells. Those above are a number of items."""
_ONE, _COUNTS = 1 << _COUNT_AT, (1 << 40) - 1
"""One item in these words, and the largest number of them: they are counted modulo 2**40."""
_FULL = _COUNTS << _COUNT_AT | _CELL
_RUN = 1 << 62
"""The bit of a header that makes it that of a run: all of its items were taken, and it says where they end."""
_RUN_ITEMS = (1 << 22) - 1

Hand = list["tuple[bytes, int] | None"]
"""Where an item is when it was taken: its content and the number of its parts; None before."""


class QueueRing:
    """The memory of one queue.

    Args:
        arena: the memory.
        slot: the place of its record there.

    Raises:
        OSError: the memory for its items cannot be mapped.
    """

    def __init__(self, arena: Arena, slot: int) -> None:
        self.mutex, self.record = arena.record(slot)
        """The address of its mutex, and the record."""
        self.words = self.record.cast("q")
        self.memory = arena.items(slot)
        self.headers = memoryview(self.memory).cast("q")
        self.version = 0
        """Grows with each change, for the owner of the mutex."""

    def begin(self, target: int, bound: int) -> None:
        """Make a new record that of an empty queue with room for `bound` items, 0 for any number."""
        self.words[BOUND] = bound
        self.restart(0, 0, 0)
        self.words[TARGET] = target

    def restart(self, tail: int, count: int, unfinished: int) -> None:
        """Have the items that were written from the beginning on be all that there are."""
        words = self.words
        words[PUTS] = count << _COUNT_AT | tail
        words[GETS] = words[AHEAD] = 0
        words[FINISHED] = count - unfinished & _COUNTS
        words[PRESENT] = 0

    @property
    def length(self) -> int:
        """The number of items from the head on, taken or not."""
        return (self.words[PUTS] >> _COUNT_AT) - (self.words[GETS] >> _COUNT_AT) & _COUNTS

    @property
    def count(self) -> int:
        """The number of items that are there."""
        return self.length - self.num_ahead

    @property
    def unfinished(self) -> int:
        """The number of items that are not finished."""
        return (self.words[PUTS] >> _COUNT_AT) - self.words[FINISHED] & _COUNTS

    @property
    def num_ahead(self) -> int:
        """The number of items that were taken ahead of the head."""
        words = self.words
        if not words[AHEAD]:
            return 0
        found, at, left = 0, words[GETS] & _CELL, (words[AHEAD] >> 1) - (words[GETS] >> _COUNT_AT) & _COUNTS
        if not left:
            words[AHEAD] = 0
        while left > 0:
            at = self.item_at(at)
            header = self.headers[at]
            num = header >> _COUNT_AT & _RUN_ITEMS if header & _RUN else 0
            found, left, at = found + num, left - (num or 1), header & _CELL if num else self.after(at)
        return found

    # These walks end also where a handler of a signal has put other items meanwhile; what they found is dropped then.

    def calls(self, what: int, before: int = -1) -> list[int]:
        """Return the words of the calls that do that, in their turn; only those before a place, if there is one."""
        words, (queue, calls) = self.words, side(what)
        waiting = words[queue]
        if not waiting:
            return []
        first, last = waiting & PLACES, waiting >> PLACE_BITS if before < 0 else before
        found = [words[calls + (first + index) % RING_LENGTH] for index in range(last - first & PLACES)]
        return [word for word in found if word & what]

    def looks_possible(self, what: int) -> bool:
        """Whether there seems to be an item for `get`, or room for `put`; for processes without the mutex as well."""
        words = self.words
        count = (words[PUTS] >> _COUNT_AT) - (words[GETS] >> _COUNT_AT)
        return count != 0 if what == GET else count < words[BOUND]

    def after(self, at: int) -> int:
        """Return the place behind the item at one."""
        return at + ((self.headers[at] & _LENGTH) + 15 >> 3)

    def item_at(self, at: int) -> int:
        """Return the place of the item that follows on a place."""
        return 0 if at >= NUM_CELLS or self.headers[at] == _GO_ROUND else at

    def placed(self, rank: int) -> tuple[int, int, int]:
        """Return the place of one of the items that are there.

        Returns:
            Its place; that of the run just before it, -1 if there is none; and how many items are between it and the
            head, taken or not.
        """
        at, index, run, length = self.item_at(self.words[GETS] & _CELL), 0, -1, self.length
        while index < length:
            header = self.headers[at]
            if header & _RUN:
                index, run, at = index + max(header >> _COUNT_AT & _RUN_ITEMS, 1), at, self.item_at(header & _CELL)
            elif rank:
                rank, index, run, at = rank - 1, index + 1, -1, self.item_at(self.after(at))
            else:
                break
        return at, run, index

    def run_behind(self, at: int) -> tuple[int, int]:
        """Return where the runs end that are just behind an item, and how many items are in them."""
        end, num, tail, length = self.after(at), 0, self.words[PUTS] & _CELL, self.length
        while end != tail and num < length and (header := self.headers[self.item_at(end)]) & _RUN:
            end, num = header & _CELL, num + max(header >> _COUNT_AT & _RUN_ITEMS, 1)
        return end, num

    def items(self) -> list[tuple[bytes, int]]:
        """Return the items that are there."""
        found, at, count = list[tuple[bytes, int]](), self.words[GETS] & _CELL, self.count
        while len(found) < count:
            at = self.item_at(at)
            header = self.headers[at]
            if header & _RUN:
                at = header & _CELL
            else:
                found.append(self.read(at))
                at = self.after(at)
        return found

    def write(self, at: int, content: Part, num_parts: int) -> None:
        """Write an item at a place, where nobody reads yet."""
        start = 8 * at + HEADER_BYTES
        self.headers[at] = len(content) | num_parts << _PARTS_AT
        self.memory[start : start + len(content)] = content

    def read(self, at: int) -> tuple[bytes, int]:
        """Return the item at a place."""
        header, start = self.headers[at], 8 * at + HEADER_BYTES
        return self.memory[start : start + (header & _LENGTH)], header >> _PARTS_AT


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


def side(what: int) -> tuple[int, int]:
    """Return which word says where the calls that do that are, and the first word of their ring."""
    return (QUEUE, RING) if what & GET else (PUTTERS, PUTTERS_RING)


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
            count = (puts >> _COUNT_AT) - (gets >> _COUNT_AT) & _COUNTS
            waiting = words[QUEUE]
            if (
                call
                or (0 < bound <= count or (words[PUTTERS] and bound))
                # Nobody is to be woken while there is an item for each call that waits.
                or (waiting and (words[AHEAD] or count < ((waiting >> PLACE_BITS) - waiting & PLACES)))
            ):
                version = ring.version
                woken, left = _turn_to_put(ring, call, version)
                if _AGAIN != woken < 0:
                    return woken
                if ring.version != version:
                    continue
            # No other code runs from here on, except after `return`.
            head, tail = gets & _CELL, puts & _CELL
            at = tail
            if not count:
                words[GETS], at = gets - head, 0
            elif tail + num_cells > (NUM_CELLS if head <= tail else head - 1):
                if not num_cells < head <= tail:
                    return ELSEWHERE
                if tail < NUM_CELLS:
                    ring.headers[tail] = _GO_ROUND
                at = 0
            start = 8 * at + HEADER_BYTES
            ring.headers[at] = length | num_parts << _PARTS_AT
            ring.memory[start : start + length] = content
            if call and call.place >= 0:
                words[PUTTERS_RING + call.place % RING_LENGTH] = 0
                words[PUTTERS] = left
            words[PUTS] = puts - tail + at + num_cells + _ONE & _FULL
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
            if not (puts ^ gets) >> _COUNT_AT:
                return REFUSED
            if waiting := words[PUTTERS]:
                num_free = words[BOUND] - ((puts >> _COUNT_AT) - (gets >> _COUNT_AT) & _COUNTS)
                if num_free < ((waiting >> PLACE_BITS) - waiting & PLACES):
                    version = ring.version
                    woken = _next_putter(ring, words[BOUND] - num_free)
                    if ring.version != version:
                        continue
            # No other code runs from here on, except after `return`.
            at = head = gets & _CELL
            if at == NUM_CELLS or headers[at] == _GO_ROUND:
                at = 0
            header, start = headers[at], 8 * at + HEADER_BYTES
            length = header & _LENGTH
            item = ring.memory[start : start + length], header >> _PARTS_AT
            words[GETS] = gets - head + at + (length + 15 >> 3) + _ONE & _FULL
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
        unfinished = (words[PUTS] >> _COUNT_AT) - finished & _COUNTS
        if not unfinished:
            return REFUSED
        words[FINISHED] = finished + 1 & _COUNTS
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


def sealed(parts: Sequence[Part]) -> tuple[Part, int]:
    """Return the parts of an item as one, and their number."""
    if len(parts) == 1:
        return parts[0], 1
    lengths = [_LENGTHS.pack(memoryview(part).nbytes) for part in parts]
    return b"".join((*lengths, *parts)), len(parts)


def opened(content: bytes, num_parts: int) -> list[bytes]:
    """Return the parts that `sealed` has put together."""
    if num_parts == 1:
        return [content]
    lengths = [_LENGTHS.unpack_from(content, 8 * index)[0] for index in range(num_parts)]
    parts, at = list[bytes](), 8 * num_parts
    for length in lengths:
        parts.append(content[at : at + length])
        at += length
    return parts


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
            num += ring.headers[run] >> _COUNT_AT & _RUN_ITEMS
        number = gets >> _COUNT_AT
        last = max(index + 1 + num_behind, (words[AHEAD] >> 1) - number & _COUNTS if words[AHEAD] else 0)
        ahead = (number + last & _COUNTS) << 1 | 1
    else:
        ahead = words[AHEAD]
    if ring.version != version:
        return _AGAIN
    if call and has_waited:
        words[RING + call.place % RING_LENGTH] = 0
        words[QUEUE] = left
    if index:
        words[AHEAD] = ahead
        ring.headers[at if run < 0 else run] = _RUN | num << _COUNT_AT | end
    else:
        words[GETS] = gets - (gets & _CELL) + (num << _COUNT_AT) + end & _FULL
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
                words[QUEUE], words[PUTTERS] = left, putters_left
                ring.version = version + 1
                return [*getters[:count], *putters[:num_free], *joiners]
    finally:
        unlock(ring.mutex)


__all__ = [
    "CALL",
    "ELSEWHERE",
    "GET",
    "HEADER_BYTES",
    "JOIN",
    "MOST_BYTES",
    "NUM_CELLS",
    "OTHER",
    "PUT",
    "REFUSED",
    "WAITS",
    "Hand",
    "QueueRing",
    "RingCall",
    "drop",
    "due",
    "finish",
    "get",
    "join",
    "opened",
    "put",
    "sealed",
    "side",
    "sizes",
    "withdraw",
]
