"""A queue: putters wait for room, getters for items, each in the order in which they came.

    putters ─▶ [ items, at most maxsize ] ─▶ lent to getters ─▶ taken

An item lent to a getter is out of the queue for all (`qsize`, `empty`, `full`). If the getter's process dies before
it has the item, the item comes back to its old place; the queue may then hold more than `maxsize` for a while.

A reader that calls repeatedly gets a *lease* of further items with one of them, and takes these without asking (where
it can; see `transport/ack_page.py`). They count as inside until the reader begins them, and a request of another reader
takes them back first: so items are handed out in their order, and none waits at a busy reader.

    A: get ─▶ item 1, lease (2 3 4 5)     A takes 2      B: get ─▶ 3 4 5 come back ─▶ item 3, lease (4 5)

A putter of a bounded queue gets, with the answer, *room* for further items, and sends these without asking. A place
that it has begun counts as filled, though its item is still on the way; places not begun come back as soon as another
putter finds no room. And while a putter waits, a reader with a lease reports when it begins an item of it.

    maxsize 4: [· · · 1]     A: put ─▶ room for 2 more     A puts 1     B: put, put ─▶ the first fits, the second waits
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ropewalk.sharing.states.leased_queue import LeasedQueue
from ropewalk.sharing.states.waiting import CallOutcome, ItemLease, SizedItem, Waiter

_MOST_IN_LOT, _MOST_BYTES = 64, 256 * 1024
"""The limits of one lease: beyond them a call per item costs little, and items taken back were sent in vain."""


@dataclass(frozen=True, slots=True)
class _Loan:
    """A lease that is out."""

    waiter: Waiter
    lot: ItemLease
    entries: Sequence[tuple[int, SizedItem]]
    """The items after the first, with their numbers in the queue."""

    @property
    def num_left(self) -> int:
        return len(self.entries) + 1 - self.lot.num_begun


@dataclass(slots=True, eq=False)
class _LeasedPlaces:
    """Places that a putter may fill without asking."""

    putter: Waiter
    lot: ItemLease
    num: int
    num_arrived: int = 0
    is_closed: bool = False

    @property
    def num_begun(self) -> int:
        # (The first of a lease is the item that came with the call. The putter writes the number.)
        return min(max(self.lot.num_begun - 1, 0), self.num)

    @property
    def num_under_way(self) -> int:
        """The number of begun items that have not arrived yet."""
        return max(self.num_begun - self.num_arrived, 0)

    @property
    def num_left(self) -> int:
        """The number of places that may still be begun."""
        return self.num - self.num_begun

    @property
    def num_open(self) -> int:
        """The number of places whose item has not arrived, begun or not.

        The putter may begin one at any moment, also between two reads, so this is not the sum of the two above.
        """
        return self.num - self.num_arrived

    def close(self) -> int:
        """Take back the places that were not begun; returns their number."""
        self.lot.close()
        self.is_closed = True
        num_left, self.num = self.num_left, self.num_begun
        return num_left


class QueueState:
    """The state of a `multiprocessing.Queue` or `JoinableQueue`.

    Args:
        maxsize: the largest number of items; 0 or less for no limit.
        joinable: whether items are counted as unfinished until `task_done`.
    """

    METHODS: ClassVar = frozenset({"put", "put_many", "get", "qsize", "empty", "full", "task_done", "join"})
    SEALED: ClassVar = frozenset({"put"})
    MANY: ClassVar = frozenset({"put_many"})
    """Like SEALED, for methods that take any number of items."""
    LENDING: ClassVar = frozenset({"get", "put"})
    """Methods that take a lease."""

    def __init__(self, maxsize: int = 0, joinable: bool = False) -> None:
        self._maxsize = maxsize
        self._joinable = joinable
        self._line = LeasedQueue()
        self._putters: deque[tuple[Waiter, SizedItem, ItemLease | None]] = deque()
        self._rooms: list[_LeasedPlaces] = []
        self._most_in_room = _MOST_IN_LOT
        self._getters: deque[tuple[Waiter, ItemLease | None]] = deque()
        self._loan: _Loan | None = None
        self._loan_is_watched = False
        self._most_in_lot = _MOST_IN_LOT
        self._joiners: list[Waiter] = []
        self._num_unfinished = 0

    def put(self, waiter: Waiter, item: SizedItem, lot: ItemLease | None = None) -> list[CallOutcome]:
        """Put in an item, when there is room; `queue.Full` on a timeout.

        Args:
            waiter: the call; ends with the number of further items that its process may put with `put_many`.
            item: the item.
            lot: the lease in which its process claims room for these; no other call has it.
        """
        for room in self._rooms:
            # A process has one lease of room at a time; if it has used this one up, it may have a larger one.
            is_its_own = room.putter.party.process == waiter.party.process
            if is_its_own and not room.is_closed and not room.close():
                self._most_in_room = min(_MOST_IN_LOT, 2 * self._most_in_room)
        self._rooms = [room for room in self._rooms if room.num_left or room.num_under_way]
        self._putters.append((waiter, item, lot))
        return self._settle()

    def put_many(self, waiter: Waiter, items: Sequence[SizedItem]) -> list[CallOutcome]:
        """Put in items for which there is room, or any in an unbounded queue."""
        num_arrived = len(items)
        for room in self._rooms:
            if room.putter.party.process == waiter.party.process:
                num = min(num_arrived, room.num_under_way)
                room.num_arrived += num
                num_arrived -= num
        for item in items:
            self._line.append(item)
        self._num_unfinished += self._joinable * len(items)
        return [CallOutcome(waiter), *self._settle()]

    def get(self, waiter: Waiter, lot: ItemLease | None = None) -> list[CallOutcome]:
        """Lend the first item, when there is one; `queue.Empty` on a timeout.

        Args:
            waiter: the call.
            lot: the lease from which its process can take more items; no other call has it.
        """
        self._take_back()
        self._getters.append((waiter, lot))
        return self._settle()

    def qsize(self, waiter: Waiter) -> list[CallOutcome]:
        """Count the items."""
        return [CallOutcome(waiter, self._num_inside)]

    def empty(self, waiter: Waiter) -> list[CallOutcome]:
        """Return whether there are no items."""
        return [CallOutcome(waiter, not self._num_inside)]

    def full(self, waiter: Waiter) -> list[CallOutcome]:
        """Return whether there is no room."""
        return [CallOutcome(waiter, 0 < self._maxsize <= self._num_inside)]

    def task_done(self, waiter: Waiter) -> list[CallOutcome]:
        """Count one item as finished; ValueError if all are."""
        if self._num_unfinished == 0:
            return [CallOutcome(waiter, error=ValueError("task_done() called too many times"))]
        self._num_unfinished -= 1
        outcomes = [CallOutcome(waiter)]
        if self._num_unfinished == 0:
            outcomes += [CallOutcome(joiner, True) for joiner in self._joiners]
            self._joiners.clear()
        return outcomes

    def join(self, waiter: Waiter) -> list[CallOutcome]:
        """Wait until all items that were put in are finished: True, or False on a timeout."""
        if self._num_unfinished == 0:
            return [CallOutcome(waiter, True)]
        self._joiners.append(waiter)
        return []

    def is_at_rest(self) -> bool:
        """Return whether nothing is lent, and no call waits except those of `get`; takes back what was leased."""
        if self._line.num_lent or self._putters or self._joiners:
            return False
        self._take_rooms_back()
        self._rooms = [room for room in self._rooms if room.num_under_way]
        if self._rooms:
            return False
        if self._loan:
            self._take_back()
        return True

    def leave(self) -> tuple[list[Any], int, list[Waiter]]:
        """Give up a queue at rest; returns its items, the number of unfinished ones, and the calls that have waited."""
        items = [item for _, item in self._line.take_all()]
        getters = [getter for getter, _ in self._getters]
        self._getters.clear()
        num_unfinished, self._num_unfinished = self._num_unfinished, 0
        return items, num_unfinished, getters

    def enter(self, items: Sequence[SizedItem], num_unfinished: int) -> None:
        """Begin, in a queue that was given up, with items."""
        for item in items:
            self._line.append(item)
        self._num_unfinished = num_unfinished

    def pass_on(self, claim: Waiter, waiter: Waiter) -> list[CallOutcome]:
        """Have another call be in the place of one of `get`, with the item that was lent to it."""
        item = self._line.pass_on(claim, waiter)
        if item is not None:
            return [CallOutcome(waiter, item, lent=True)]
        self._getters = deque((waiter if getter is claim else getter, lot) for getter, lot in self._getters)
        return []

    def begun(self) -> list[CallOutcome]:
        """Handle the report that an item of the present lease was begun."""
        self._loan_is_watched = False
        return self._settle()

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a call that still waits, or take back the item lent to it."""
        if self._line.give_back(waiter):
            if self._loan and self._loan.waiter is waiter:
                self._take_back()  # later items must not be taken before it
            return self._settle()
        if any(getter is waiter for getter, _ in self._getters):
            self._getters = deque(entry for entry in self._getters if entry[0] is not waiter)
            return [CallOutcome(waiter, error=queue.Empty())] if timed_out else []
        if waiter in self._joiners:
            self._joiners.remove(waiter)
            return [CallOutcome(waiter, False)] if timed_out else []
        if any(entry[0] is waiter for entry in self._putters):
            self._putters = deque(entry for entry in self._putters if entry[0] is not waiter)
            return [CallOutcome(waiter, error=queue.Full())] if timed_out else []
        return []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Forget the item lent to this call: it has arrived."""
        self._line.taken(waiter)
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the calls of this process, and pass on the items lent to it."""
        self._putters = deque(entry for entry in self._putters if entry[0].party.process != process)
        self._getters = deque(entry for entry in self._getters if entry[0].party.process != process)
        self._joiners = [waiter for waiter in self._joiners if waiter.party.process != process]
        self._rooms = [room for room in self._rooms if room.putter.party.process != process]
        if self._loan and self._loan.waiter.party.process == process:
            self._take_back()
        self._line.give_back_all_of(process)
        return self._settle()

    @property
    def _num_inside(self) -> int:
        return self._num_here + sum(room.num_under_way for room in self._rooms)

    @property
    def _num_here(self) -> int:
        """The number of items that have arrived, and that no reader has begun."""
        return len(self._line) + (self._loan.num_left if self._loan else 0)

    @property
    def _num_free(self) -> int:
        """The number of places that are neither filled nor promised."""
        return self._maxsize - self._num_here - sum(room.num_open for room in self._rooms)

    def _settle(self) -> list[CallOutcome]:
        """Serve getters and putters while either is possible."""
        outcomes: list[CallOutcome] = []
        while True:
            if self._getters and self._line:
                outcomes.append(self._lend(*self._getters.popleft()))
            elif not self._putters:
                return outcomes
            elif self._maxsize <= 0 or self._num_free > 0:
                waiter, item, lot = self._putters.popleft()
                self._line.append(item)
                self._num_unfinished += self._joinable
                outcomes.append(CallOutcome(waiter, self._promise(waiter, lot)))
            elif not self._take_rooms_back() and not self._watch():
                return outcomes

    def _promise(self, waiter: Waiter, lot: ItemLease | None) -> int | None:
        """Promise a putter room for more items, if no other putter waits for it; returns their number."""
        if lot is None or self._putters:
            return None
        num = min(self._num_free, self._most_in_room)
        if num <= 0:  # as always without a limit
            return None
        lot.open()
        self._rooms.append(_LeasedPlaces(waiter, lot, num))
        return num

    def _take_rooms_back(self) -> bool:
        """Take back all places not begun; returns whether there were any. The next rooms are as large as was used."""
        num_back = 0
        for room in self._rooms:
            if not room.is_closed and (num_left := room.close()):
                num_back += num_left
                self._most_in_room = max(1, room.num)
        return num_back > 0

    def _watch(self) -> bool:
        """Ask, for a waiting putter, to learn of the next item that leaves; returns whether one may have left."""
        if self._loan is None or self._loan_is_watched:
            return False
        self._loan.lot.watch()
        self._loan_is_watched = True
        return True

    def _lend(self, waiter: Waiter, lot: ItemLease | None) -> CallOutcome:
        """End a call with the first item, and perhaps a lease of more."""
        outcome = self._line.lend(waiter)
        if lot is None or self._getters or not outcome.value.is_light:
            return outcome
        entries = self._line.take(self._most_in_lot, _MOST_BYTES - outcome.value.size_bytes)
        if not entries:
            return outcome
        lot.open()
        self._loan, self._loan_is_watched = _Loan(waiter, lot, entries), False
        return replace(outcome, more=[item for _, item in entries])

    def _take_back(self) -> None:
        """Take back the present lease; the next one is as large as seems useful."""
        loan, self._loan = self._loan, None
        if loan is None:
            self._most_in_lot = min(_MOST_IN_LOT, self._most_in_lot + 1)
            return
        num_taken = loan.lot.close() - 1
        left = loan.entries[num_taken:]
        self._line.put_back(left)
        self._most_in_lot = num_taken if left else min(_MOST_IN_LOT, 2 * self._most_in_lot)
