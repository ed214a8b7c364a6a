"""A queue: putters wait for room, getters for items, each in the order in which they came.

    putters ─▶ [ items, at most maxsize ] ─▶ lent to getters ─▶ taken

What is lent to a getter is out of the queue for everybody (`qsize`, `empty`, `full`). If the getter's process dies
before it has the item, the item comes back to its old place; the queue may then hold more than `maxsize` for a while.
"""

from __future__ import annotations

import queue
from collections import deque
from typing import ClassVar

from ropewalk.sharing.states.line import Line
from ropewalk.sharing.states.waiting import Item, Outcome, Waiter


class QueueState:
    """What `multiprocessing.Queue` and `JoinableQueue` do.

    Args:
        maxsize: how many items fit in; 0 or less for any number.
        joinable: whether items are counted as unfinished until `task_done`.
    """

    METHODS: ClassVar = frozenset({"put", "get", "qsize", "empty", "full", "task_done", "join"})
    SEALED: ClassVar = frozenset({"put"})

    def __init__(self, maxsize: int = 0, joinable: bool = False) -> None:
        self._maxsize = maxsize
        self._joinable = joinable
        self._line = Line()
        self._putters: deque[tuple[Waiter, Item]] = deque()
        self._getters: deque[Waiter] = deque()
        self._joiners: list[Waiter] = []
        self._num_unfinished = 0

    def put(self, waiter: Waiter, item: Item) -> list[Outcome]:
        """Put an item in, when there is room; `queue.Full` when the time is over."""
        self._putters.append((waiter, item))
        return self._settle()

    def get(self, waiter: Waiter) -> list[Outcome]:
        """Lend the first item, when there is one; `queue.Empty` when the time is over."""
        self._getters.append(waiter)
        return self._settle()

    def qsize(self, waiter: Waiter) -> list[Outcome]:
        """Count the items."""
        return [Outcome(waiter, len(self._line))]

    def empty(self, waiter: Waiter) -> list[Outcome]:
        """Say whether there are no items."""
        return [Outcome(waiter, not self._line)]

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
            return self._settle()
        if waiter in self._getters:
            self._getters.remove(waiter)
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
        self._getters = deque(waiter for waiter in self._getters if waiter.party.process != process)
        self._joiners = [waiter for waiter in self._joiners if waiter.party.process != process]
        self._line.give_back_all_of(process)
        return self._settle()

    @property
    def _has_room(self) -> bool:
        return self._maxsize <= 0 or len(self._line) < self._maxsize

    def _settle(self) -> list[Outcome]:
        """Serve getters and let putters in, for as long as either is possible."""
        outcomes: list[Outcome] = []
        while True:
            if self._getters and self._line:
                outcomes.append(self._line.lend(self._getters.popleft()))
            elif self._putters and self._has_room:
                waiter, item = self._putters.popleft()
                self._line.append(item)
                self._num_unfinished += self._joinable
                outcomes.append(Outcome(waiter))
            else:
                return outcomes
