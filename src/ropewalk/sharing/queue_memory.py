"""The memory of a queue of this host: where its items are, and the calls that wait for `queue_ring.py`.

    items    │ · · ·│ 3 │ · │ 5 │ 6 │ · · · │       GETS: how many were taken up to the head, and its place
                    head            tail            PUTS: how many were put, and the place behind them

    getters  │ 0 · B · D │      putters  │ C · join E · F │        calls that wait, in their turn; 0: it is over

Items that were taken ahead of the head, here the fourth one, are a *run*: its first header says how many they are and
where they end, so that a walk over the items passes them in one step.
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.sharing.arena import Arena
    from ropewalk.transport.frames import Part

GET, PUT, JOIN, JOINED = 1 << 40, 1 << 41, 1 << 42, 1 << 43
"""What a call does: a bit of its word. A call of `join` whose wait is over has another one than before."""
CALL = (1 << 40) - 1
"""The bits of a call's word that say which call it is: its process and its number there."""
HEADER_BYTES = 8
"""Bytes before the content of each item."""
PARTS_AT = 32
"""The number of an item's parts is its header, shifted to the right by this."""
LENGTH = (1 << PARTS_AT) - 1
"""The bits of a header that are the length of the content, in bytes."""
GO_ROUND = -1
"""Stands for a header behind the last item before the end: the next item is at the beginning."""
COUNT_AT = 22
CELL = (1 << COUNT_AT) - 1
"""The bits of PUTS, GETS and of the header of a run that are a place, in cells. Those above are a number of items."""
ONE, COUNTS = 1 << COUNT_AT, (1 << 40) - 1
"""One item in these words, and the largest number of them: they are counted modulo 2**40."""
FULL = COUNTS << COUNT_AT | CELL
"""All bits of these words."""
RUN = 1 << 62
"""The bit of a header that makes it that of a run."""
RUN_ITEMS = (1 << COUNT_AT) - 1
_LENGTHS = struct.Struct("=q")


class QueueRing:
    """The memory of one queue.

    Args:
        arena: the memory.
        slot: the place of its record there.

    Raises:
        OSError: the memory for its items cannot be mapped.
    """

    num_cells = ITEM_BYTES // 8
    """The memory of the items in *cells* of eight bytes, in which they are placed: a header, then the content."""

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
        words[PUTS] = count << COUNT_AT | tail
        words[GETS] = words[AHEAD] = 0
        words[FINISHED] = count - unfinished & COUNTS
        words[PRESENT] = 0

    @property
    def length(self) -> int:
        """The number of items from the head on, taken or not."""
        return (self.words[PUTS] >> COUNT_AT) - (self.words[GETS] >> COUNT_AT) & COUNTS

    @property
    def count(self) -> int:
        """The number of items that are there."""
        return self.length - self.num_ahead

    @property
    def unfinished(self) -> int:
        """The number of items that are not finished."""
        return (self.words[PUTS] >> COUNT_AT) - self.words[FINISHED] & COUNTS

    @property
    def num_ahead(self) -> int:
        """The number of items that were taken ahead of the head."""
        words = self.words
        if not words[AHEAD]:
            return 0
        found, at, left = 0, words[GETS] & CELL, (words[AHEAD] >> 1) - (words[GETS] >> COUNT_AT) & COUNTS
        if not left:
            words[AHEAD] = 0
        while left > 0:
            at = self.item_at(at)
            header = self.headers[at]
            num = header >> COUNT_AT & RUN_ITEMS if header & RUN else 0
            found, left, at = found + num, left - (num or 1), header & CELL if num else self.after(at)
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
        count = (words[PUTS] >> COUNT_AT) - (words[GETS] >> COUNT_AT)
        return count != 0 if what == GET else count < words[BOUND]

    def after(self, at: int) -> int:
        """Return the place behind the item at one."""
        return at + ((self.headers[at] & LENGTH) + 15 >> 3)

    def item_at(self, at: int) -> int:
        """Return the place of the item that follows on a place."""
        return 0 if at >= self.num_cells or self.headers[at] == GO_ROUND else at

    def placed(self, rank: int) -> tuple[int, int, int]:
        """Return the place of one of the items that are there.

        Returns:
            Its place; that of the run just before it, -1 if there is none; and how many items are between it and the
            head, taken or not.
        """
        at, index, run, length = self.item_at(self.words[GETS] & CELL), 0, -1, self.length
        while index < length:
            header = self.headers[at]
            if header & RUN:
                index, run, at = index + max(header >> COUNT_AT & RUN_ITEMS, 1), at, self.item_at(header & CELL)
            elif rank:
                rank, index, run, at = rank - 1, index + 1, -1, self.item_at(self.after(at))
            else:
                break
        return at, run, index

    def run_behind(self, at: int) -> tuple[int, int]:
        """Return where the runs end that are just behind an item, and how many items are in them."""
        end, num, tail, length = self.after(at), 0, self.words[PUTS] & CELL, self.length
        while end != tail and num < length and (header := self.headers[self.item_at(end)]) & RUN:
            end, num = header & CELL, num + max(header >> COUNT_AT & RUN_ITEMS, 1)
        return end, num

    def items(self) -> list[tuple[bytes, int]]:
        """Return the items that are there."""
        found, at, count = list[tuple[bytes, int]](), self.words[GETS] & CELL, self.count
        while len(found) < count:
            at = self.item_at(at)
            header = self.headers[at]
            if header & RUN:
                at = header & CELL
            else:
                found.append(self.read(at))
                at = self.after(at)
        return found

    def write(self, at: int, content: Part, num_parts: int) -> None:
        """Write an item at a place, where nobody reads yet."""
        start = 8 * at + HEADER_BYTES
        self.headers[at] = len(content) | num_parts << PARTS_AT
        self.memory[start : start + len(content)] = content

    def read(self, at: int) -> tuple[bytes, int]:
        """Return the item at a place."""
        header, start = self.headers[at], 8 * at + HEADER_BYTES
        return self.memory[start : start + (header & LENGTH)], header >> PARTS_AT


def side(what: int) -> tuple[int, int]:
    """Return which word says where the calls that do that are, and the first word of their ring."""
    return (QUEUE, RING) if what & GET else (PUTTERS, PUTTERS_RING)


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


__all__ = [
    "CALL",
    "CELL",
    "COUNTS",
    "COUNT_AT",
    "FULL",
    "GET",
    "GO_ROUND",
    "HEADER_BYTES",
    "JOIN",
    "JOINED",
    "LENGTH",
    "ONE",
    "PARTS_AT",
    "PUT",
    "RUN",
    "RUN_ITEMS",
    "QueueRing",
    "opened",
    "sealed",
    "side",
]
