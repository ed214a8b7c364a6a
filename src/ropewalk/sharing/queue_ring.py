"""A queue of this host, in memory that its processes share: items one after the other, and the calls that wait.

    items  │ · · ·│ 3 │ · │ 5 │ 6 │ · · · │     bank A │ head, tail, count, taken, unfinished │
                  head            tail          bank B │ the same, after the next change      │ ◀─ PRESENT

    calls  │ 0 · get B · put C · get D · join E │   in their turn; 0: it is over

Nothing is granted: **the first call of `get` has the first item, the second one the second**, if there are that many,
and in the same way calls of `put` have the places that are free. So a call that goes away leaves what it would have had
to the one behind it. A call takes its own item also before the calls ahead of it have taken theirs: that item is then
noted as taken, by its bit, until the head has passed it.

Each change is one store, that of PRESENT, after the other bank was written: a process that is killed at any step has
made it or not, and the next owner of the mutex has nothing to repair. (The word of a call is cleared before its item
is taken, so a call that was killed in between has taken nothing.) A handler of a signal may use the queue in the middle
of a change: the mutex is recursive, and the outer change sees another version and starts anew.

Items for which there is no room, large ones, and calls of other hosts are left to the depot, which then takes the queue
over (`ringed_queue.py`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ropewalk.sharing.arena import ITEM_BYTES
from ropewalk.sharing.record_words import (
    BANKS,
    BOUND,
    IN_DEPOT,
    NUMBER_BITS,
    PLACE_BITS,
    PLACES,
    PRESENT,
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
_BANK = struct.Struct("=4q64s")
_NOTHING = bytes(64)
_BANKS = [8 * place for place in BANKS]
_LENGTHS = struct.Struct("=q")
HEADER_BYTES = 8
"""Bytes before the content of each item."""
_PARTS_AT = 32
_LENGTH = (1 << _PARTS_AT) - 1
_GO_ROUND = -1
"""Stands for a header behind the last item before the end: the next item is at the beginning."""
_MOST_AHEAD = 500
"""Items that can be noted as taken behind the first one that is not."""

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
        """Grows with each change, and with each look at the state; for the owner of the mutex."""

    def begin(self, target: int, bound: int) -> None:
        """Make a new record that of an empty queue with room for `bound` items, 0 for any number."""
        self.words[BOUND] = bound
        self.restart(0, 0, 0)
        self.words[TARGET] = target

    def restart(self, tail: int, count: int, unfinished: int) -> None:
        """Have the items that were written from the beginning on be all that there are."""
        _BANK.pack_into(self.record, _BANKS[0], 0, tail, count, unfinished, _NOTHING)
        self.words[PRESENT] = 0

    def state(self) -> tuple[int, int, int, int, int]:
        """Return the present bank."""
        head, tail, count, unfinished, noted = _BANK.unpack_from(self.record, _BANKS[self.words[PRESENT]])
        return head, tail, count, int.from_bytes(noted, "little"), unfinished

    def calls(self, what: int, before: int = -1) -> list[int]:
        """Return the words of the calls that do that, in their turn; only those before a place, if there is one."""
        words, waiting = self.words, self.words[QUEUE]
        first, last = waiting & PLACES, waiting >> PLACE_BITS if before < 0 else before
        found = [words[RING + (first + index) % RING_LENGTH] for index in range(last - first & PLACES)]
        return [word for word in found if word & what]

    def after(self, at: int) -> int:
        """Return the place behind the item at one."""
        return at + ((self.headers[at >> 3] & _LENGTH) + 15 & ~7)

    def item_at(self, at: int) -> int:
        """Return the place of the item that follows on a place."""
        return 0 if at == ITEM_BYTES or self.headers[at >> 3] == _GO_ROUND else at

    def placed(self, head: int, taken: int, rank: int) -> tuple[int, int]:
        """Return the place of one of the items that are there, and how many are ahead of it, taken or not."""
        at, index = self.item_at(head), 0
        while rank or taken >> index & 1:
            rank -= not taken >> index & 1
            at, index = self.item_at(self.after(at)), index + 1
        return at, index

    def write(self, at: int, content: Part, num_parts: int) -> None:
        """Write an item at a place, where nobody reads yet."""
        start = at + HEADER_BYTES
        self.headers[at >> 3] = len(content) | num_parts << _PARTS_AT
        self.memory[start : start + len(content)] = content

    def read(self, at: int) -> tuple[bytes, int]:
        """Return the item at a place."""
        header, start = self.headers[at >> 3], at + HEADER_BYTES
        return self.memory[start : start + (header & _LENGTH)], header >> _PARTS_AT

    def room(self, head: int, tail: int, size: int) -> int:
        """Return the place for an item of a size, behind those that are there; -1 if there is none."""
        if tail < head:
            return tail if tail + size < head else -1
        if tail + size <= ITEM_BYTES:
            return tail
        return 0 if size < head else -1

    def without_taken(self, at: int, taken: int) -> tuple[int, int]:
        """Return the head behind the item at a place, and which items behind that are taken."""
        head, taken = self.after(at), taken >> 1
        while taken & 1:
            head, taken = self.after(self.item_at(head)), taken >> 1
        return head, taken


class RingCall:
    """A call that may have to wait.

    Args:
        process: the seat of its process.
        number: its number there.
        what: GET, PUT or JOIN.
    """

    def __init__(self, process: int, number: int, what: int) -> None:
        self.word = process << NUMBER_BITS | number | what
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
    words, mutex, record, length = ring.words, ring.mutex, ring.record, len(content)
    size = length + 15 & ~7
    count: int
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            ring.version = version = ring.version + 1
            present, waiting, bound = words[PRESENT], words[QUEUE], words[BOUND]
            if present == IN_DEPOT or size > MOST_BYTES:
                return ELSEWHERE
            head, tail, count, unfinished, noted = _BANK.unpack_from(record, _BANKS[present])
            num_inside, num_before, woken, left = count, 0, 0, waiting
            if call or waiting >> PLACE_BITS != waiting & PLACES:
                getters = ring.calls(GET)
                num_inside = max(count - len(getters), 0)
                num_before, left = _before(ring, call, PUT)
                if num_before < 0:
                    return ELSEWHERE
                if len(getters) > count:
                    woken = getters[count]
                    if call and call.place >= 0:  # its turn is the next one's, as the item fills no place
                        woken |= _next_putter(ring, 0) << OTHER
            if bound and num_inside + num_before >= bound:
                if entered := _entered(ring, call, version):
                    return entered
                continue
            if not count:
                head = tail = 0
            at = ring.room(head, tail, size)
            if at < 0:
                return ELSEWHERE
            content_at, content_end = at + HEADER_BYTES, at + HEADER_BYTES + length
            if ring.version != version:
                continue
            if at < tail < ITEM_BYTES:
                ring.headers[tail >> 3] = _GO_ROUND
            ring.headers[at >> 3] = length | num_parts << _PARTS_AT
            ring.memory[content_at:content_end] = content
            _BANK.pack_into(record, _BANKS[1 - present], head, at + size, count + 1, unfinished + 1, noted)
            if ring.version == version:
                if call and call.place >= 0:
                    words[RING + call.place % RING_LENGTH] = 0
                    words[QUEUE] = left
                words[PRESENT] = 1 - present
                ring.version = version + 1
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
    words, mutex, record = ring.words, ring.mutex, ring.record
    while True:
        try:
            if problem := trylock(mutex):
                lock_despite(problem, mutex)
            ring.version = version = ring.version + 1
            present, waiting = words[PRESENT], words[QUEUE]
            if present == IN_DEPOT:
                return ELSEWHERE
            head, tail, count, unfinished, noted = _BANK.unpack_from(record, _BANKS[present])
            taken = 0 if noted == _NOTHING else int.from_bytes(noted, "little")
            rank, woken, left = 0, 0, waiting
            if call or waiting >> PLACE_BITS != waiting & PLACES:
                rank, left = _before(ring, call, GET)
                if rank < 0:
                    return ELSEWHERE
                if not call or call.place < 0:
                    woken = _next_putter(ring, count - rank)
            if count <= rank:
                if entered := _entered(ring, call, version):
                    return entered
                continue
            at, index = ring.item_at(head), 0
            if rank or taken:
                at, index = ring.placed(head, taken, rank)
            item = ring.read(at)
            if not index:
                head, taken = ring.without_taken(at, taken)
            elif index > _MOST_AHEAD:
                return ELSEWHERE
            else:
                taken |= 1 << index
            noted = taken.to_bytes(64, "little") if taken else _NOTHING
            if ring.version != version:  # the other bank may be the present one by now
                continue
            _BANK.pack_into(record, _BANKS[1 - present], head, tail, count - 1, unfinished, noted)
            if ring.version == version:
                if call and call.place >= 0:
                    words[RING + call.place % RING_LENGTH] = 0
                    words[QUEUE] = left
                words[PRESENT] = 1 - present
                hand[0] = item
                ring.version = version + 1
                return woken
        finally:
            unlock(mutex)


def finish(ring: QueueRing) -> int:
    """Count one item as finished.

    Returns:
        0; WAITS if all are finished now, and calls of `join` are to be woken; REFUSED if all were; or ELSEWHERE.
    """
    words, mutex, record = ring.words, ring.mutex, ring.record
    while True:
        try:
            lock(mutex)
            ring.version = version = ring.version + 1
            present = words[PRESENT]
            if present == IN_DEPOT:
                return ELSEWHERE
            head, tail, count, unfinished, noted = _BANK.unpack_from(ring.record, _BANKS[present])
            if not unfinished:
                return REFUSED
            if ring.version != version:
                continue
            _BANK.pack_into(record, _BANKS[1 - present], head, tail, count, unfinished - 1, noted)
            if ring.version == version:
                words[PRESENT] = 1 - present
                ring.version = version + 1
                return WAITS if unfinished == 1 and _end_joins(ring) else 0
        finally:
            unlock(mutex)


def join(ring: QueueRing, call: RingCall | None) -> int:
    """Return 0 if all items are finished, or were at a time since the call began to wait; otherwise as `put`."""
    words = ring.words
    while True:
        try:
            lock(ring.mutex)
            ring.version = version = ring.version + 1
            entry = words[RING + call.place % RING_LENGTH] if call and call.place >= 0 else 0
            if entry and call and entry == call.word ^ JOIN ^ JOINED:
                return 0
            if words[PRESENT] == IN_DEPOT or _before(ring, call, JOIN)[0] < 0:
                return ELSEWHERE
            if not ring.state()[4]:
                return 0
            if entered := _entered(ring, call, version):
                return entered
        finally:
            unlock(ring.mutex)


def sizes(ring: QueueRing) -> tuple[int, int] | None:
    """Return the number of items that no call has, and the largest one, 0 for any; None if the depot has the queue."""
    try:
        lock(ring.mutex)
        if ring.words[PRESENT] == IN_DEPOT:
            return None
        return max(ring.state()[2] - len(ring.calls(GET)), 0), ring.words[BOUND]
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


def _before(ring: QueueRing, call: RingCall | None, what: int) -> tuple[int, int]:
    """Return how many calls that do the same are before one, -1 if that is over; and QUEUE without it."""
    if call is None or call.place < 0:
        return len(ring.calls(what)), 0
    words, place, waiting = ring.words, call.place, ring.words[QUEUE]
    if words[RING + place % RING_LENGTH] != call.word:
        return -1, 0
    first, last = waiting & PLACES, waiting >> PLACE_BITS
    while first != last and (first == place or not words[RING + first % RING_LENGTH]):
        first = first + 1 & PLACES
    return len(ring.calls(what, place)), first | last << PLACE_BITS


def _entered(ring: QueueRing, call: RingCall | None, version: int) -> int:
    """Have a call wait, which may do so already; 0 if there was a change in between."""
    if call is None:
        return REFUSED
    if call.place >= 0:
        return WAITS
    words, waiting = ring.words, ring.words[QUEUE]
    first, last = waiting & PLACES, waiting >> PLACE_BITS
    while first != last and not words[RING + first % RING_LENGTH]:
        first = first + 1 & PLACES
    if last - first & PLACES >= RING_LENGTH:
        return ELSEWHERE
    if ring.version == version:
        words[RING + last % RING_LENGTH] = call.word
        words[QUEUE] = first | (last + 1 & PLACES) << PLACE_BITS
        call.place = last
        ring.version = version + 1
        return WAITS
    return 0


def _end_joins(ring: QueueRing) -> bool:
    """End the wait of the calls of `join`; returns whether there are any."""
    words, waiting = ring.words, ring.words[QUEUE]
    first, last = waiting & PLACES, waiting >> PLACE_BITS
    found = False
    for index in range(last - first & PLACES):
        at = RING + (first + index) % RING_LENGTH
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
        present, waiting = words[PRESENT], words[QUEUE]
        if present == IN_DEPOT:
            return []
        first, last = waiting & PLACES, waiting >> PLACE_BITS
        for index in range(last - first & PLACES):
            at = RING + (first + index) % RING_LENGTH
            if words[at] and is_over(words[at], first + index & PLACES):
                ring.version += 1
                words[at] = 0
        while True:
            ring.version = version = ring.version + 1
            _, _, count, _, unfinished = ring.state()
            getters, putters = ring.calls(GET), ring.calls(PUT)
            joiners = ring.calls(JOINED if unfinished else JOIN | JOINED)
            bound = words[BOUND]
            num_free = max(bound - max(count - len(getters), 0), 0) if bound else 0
            if ring.version == version:
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
    "sizes",
    "withdraw",
]
