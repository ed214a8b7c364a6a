"""A queue: putters wait for room, getters for items, each in the order in which they came.

    putters ─▶ [ items, at most maxsize ] ─▶ lent to getters ─▶ taken

What is lent to a getter is out of the queue for everybody (`qsize`, `empty`, `full`). If the getter's process dies
before it has the item, the item comes back to its old place; the queue may then hold more than `maxsize` for a while.

A reader that calls again and again gets a *lot* of items with one of them, and takes these without asking (where it
can; see `transport/taken_page.py`). They count as inside until it begins them, and whoever else asks for an item has
them taken back before: so items are handed out in their order, and none waits at a reader that is busy.

    A: get ─▶ item 1, lot (2 3 4 5)     A takes 2      B: get ─▶ 3 4 5 come back ─▶ item 3, lot (4 5)
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ropewalk.sharing.states.line import Line
from ropewalk.sharing.states.waiting import Item, Lot, Outcome, Waiter

#: The most in one lot: by then a call for each costs little, and what is taken back was carried in vain.
_MOST_IN_LOT, _MOST_BYTES = 64, 256 * 1024


@dataclass(frozen=True, slots=True)
class _Loan:
    """A lot that is out."""

    waiter: Waiter
    lot: Lot
    entries: Sequence[tuple[int, Item]]
    """The items after the first, with their numbers in the line."""

    @property
    def num_left(self) -> int:
        return len(self.entries) + 1 - self.lot.num_begun


class QueueState:
    """What `multiprocessing.Queue` and `JoinableQueue` do.

    Args:
        maxsize: how many items fit in; 0 or less for any number.
        joinable: whether items are counted as unfinished until `task_done`.
    """

    METHODS: ClassVar = frozenset({"put", "put_many", "get", "qsize", "empty", "full", "task_done", "join"})
    SEALED: ClassVar = frozenset({"put"})
    MANY: ClassVar = frozenset({"put_many"})
    """As SEALED, for any number of items."""
    LENDING: ClassVar = frozenset({"get"})
    """Those that take a lot."""

    def __init__(self, maxsize: int = 0, joinable: bool = False) -> None:
        self._maxsize = maxsize
        self._joinable = joinable
        self._line = Line()
        self._putters: deque[tuple[Waiter, Item]] = deque()
        self._getters: deque[tuple[Waiter, Lot | None]] = deque()
        self._loan: _Loan | None = None
        self._most_in_lot = _MOST_IN_LOT
        self._joiners: list[Waiter] = []
        self._num_unfinished = 0

    def put(self, waiter: Waiter, item: Item) -> list[Outcome]:
        """Put an item in, when there is room; `queue.Full` when the time is over."""
        self._putters.append((waiter, item))
        return self._settle()

    def put_many(self, waiter: Waiter, items: Sequence[Item]) -> list[Outcome]:
        """Put items in without waiting for room."""
        for item in items:
            self._line.append(item)
        self._num_unfinished += self._joinable * len(items)
        return [Outcome(waiter), *self._settle()]

    def get(self, waiter: Waiter, lot: Lot | None = None) -> list[Outcome]:
        """Lend the first item, when there is one; `queue.Empty` when the time is over.

        Args:
            waiter: the call.
            lot: where its process can take more than one; no other call has it.
        """
        self._take_back()
        self._getters.append((waiter, lot))
        return self._settle()

    def qsize(self, waiter: Waiter) -> list[Outcome]:
        """Count the items."""
        return [Outcome(waiter, self._num_inside)]

    def empty(self, waiter: Waiter) -> list[Outcome]:
        """Say whether there are no items."""
        return [Outcome(waiter, not self._num_inside)]

    def full(self, waiter: Waiter) -> list[Outcome]:
        """Say whether there is no room."""
        return [Outcome(waiter, not self._has_room)]

    def task_done(self, waiter: Waiter) -> list[Outcome]:
        """Count one item that was put in as finished; ValueError if all are."""
        if self._num_unfinished == 0:
            return [Outcome(waiter, error=ValueError("task_done() called too many times"))]
        self._num_unfinished -= 1
        outcomes = [Outcome(waiter)]
        if self._num_unfinished == 0:
            outcomes += [Outcome(joiner, True) for joiner in self._joiners]
            self._joiners.clear()
        return outcomes

    def join(self, waiter: Waiter) -> list[Outcome]:
        """Wait until all items that were put in are finished: True, or False when the time is over."""
        if self._num_unfinished == 0:
            return [Outcome(waiter, True)]
        self._joiners.append(waiter)
        return []

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[Outcome]:
        """End a call without what it waited for, or take back what was lent to it."""
        if self._line.give_back(waiter):
            if self._loan and self._loan.waiter is waiter:
                self._take_back()  # what comes after it shall not be taken before it
            return self._settle()
        if any(getter is waiter for getter, _ in self._getters):
            self._getters = deque(entry for entry in self._getters if entry[0] is not waiter)
            return [Outcome(waiter, error=queue.Empty())] if timed_out else []
        if waiter in self._joiners:
            self._joiners.remove(waiter)
            return [Outcome(waiter, False)] if timed_out else []
        if any(putter is waiter for putter, _ in self._putters):
            self._putters = deque(entry for entry in self._putters if entry[0] is not waiter)
            return [Outcome(waiter, error=queue.Full())] if timed_out else []
        return []

    def taken(self, waiter: Waiter) -> list[Outcome]:
        """Forget what was lent to this call: it has arrived."""
        self._line.taken(waiter)
        return []

    def party_gone(self, process: str, name: str) -> list[Outcome]:
        """Forget the calls of this process, and hand on what was lent to it."""
        self._putters = deque(entry for entry in self._putters if entry[0].party.process != process)
        self._getters = deque(entry for entry in self._getters if entry[0].party.process != process)
        self._joiners = [waiter for waiter in self._joiners if waiter.party.process != process]
        if self._loan and self._loan.waiter.party.process == process:
            self._take_back()
        self._line.give_back_all_of(process)
        return self._settle()

    @property
    def _num_inside(self) -> int:
        return len(self._line) + (self._loan.num_left if self._loan else 0)

    @property
    def _has_room(self) -> bool:
        return self._maxsize <= 0 or len(self._line) < self._maxsize

    def _settle(self) -> list[Outcome]:
        """Serve getters and let putters in, for as long as either is possible."""
        outcomes: list[Outcome] = []
        while True:
            if self._getters and self._line:
                outcomes.append(self._lend(*self._getters.popleft()))
            elif self._putters and self._has_room:
                waiter, item = self._putters.popleft()
                self._line.append(item)
                self._num_unfinished += self._joinable
                outcomes.append(Outcome(waiter))
            else:
                return outcomes

    def _lend(self, waiter: Waiter, lot: Lot | None) -> Outcome:
        """End a call with the first item, and perhaps more."""
        outcome = self._line.lend(waiter)
        # Putters of a queue with bounds have to hear of each item that is taken.
        if lot is None or self._getters or self._maxsize > 0 or not outcome.value.is_light:
            return outcome
        entries = self._line.take(self._most_in_lot, _MOST_BYTES - outcome.value.size_bytes)
        if not entries:
            return outcome
        lot.open()
        self._loan = _Loan(waiter, lot, entries)
        return replace(outcome, more=[item for _, item in entries])

    def _take_back(self) -> None:
        """Have no lot out; the next one is as large as it seems to be of use."""
        loan, self._loan = self._loan, None
        if loan is None:
            self._most_in_lot = min(_MOST_IN_LOT, self._most_in_lot + 1)
            return
        num_taken = loan.lot.close() - 1
        left = loan.entries[num_taken:]
        self._line.put_back(left)
        self._most_in_lot = num_taken if left else min(_MOST_IN_LOT, 2 * self._most_in_lot)
