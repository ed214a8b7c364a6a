"""Gathers calls of one method until a batch is due. Pure.

    a call comes ─▶ full?                                              ─▶ run
                    all callers of the last batch have called again?   ─▶ run: no other call is expected
                    the first call has waited `max_wait_s`?            ─▶ run

So a single caller never waits for others, and callers that call repeatedly share a batch. A caller that has stopped
calling delays the others once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchQueue(Generic[T]):
    """Calls of one method that wait for others.

    One batch runs at a time. Calls that arrive meanwhile gather, and their waiting time counts, so under load the next
    batch runs as soon as the previous one is done.

    Args:
        max_size: maximum size of a batch, in calls or rows.
        max_wait_s: maximum number of seconds for which a call waits for others, beside the time that the running batch
            takes.
    """

    def __init__(self, max_size: int, max_wait_s: float) -> None:
        self._max_size = max_size
        self._max_wait_s = max_wait_s
        self._waiting: deque[tuple[float, T, Hashable]] = deque()
        self._running = False
        self._expected: set[Hashable] = set()
        """Those callers of the last batch that are still connected."""
        self._size_of_call = 1.0
        """Average share of one call in a batch's size, as far as it is known."""

    def add(self, item: T, caller: Hashable, now: float, *, more: bool = False) -> list[T]:
        """Add a call; return the batch to run now, or nothing.

        Args:
            item: the call.
            caller: identifies the caller.
            now: monotonic time in seconds.
            more: whether other calls arrived together with it, so that a batch runs at once only if this call completes
                it; call `due` after them.
        """
        self._waiting.append((now, item, caller))
        return [] if more and not self._is_full and now < self._waiting[0][0] + self._max_wait_s else self.due(now)

    def due(self, now: float) -> list[T]:
        """Return the batch to run now, or nothing. `done` must follow it."""
        due = self.next_due
        if due is None or (now < due and not self._is_full and not self._all_here):
            return []
        self._running = True
        count = min(len(self._waiting), max(1, round(self._max_size / self._size_of_call)))
        batch = [self._waiting.popleft() for _ in range(count)]
        self._expected = {caller for _, _, caller in batch}
        return [item for _, item, _ in batch]

    def done(self, now: float) -> list[T]:
        """Note that the running batch is done; return the next batch to run now, or nothing."""
        self._running = False
        return self.due(now)

    def gone(self, caller: Hashable, now: float) -> list[T]:
        """Note that a caller will not call again; return the batch to run now, or nothing."""
        self._expected.discard(caller)
        return self.due(now)

    @property
    def next_due(self) -> float | None:
        """The latest time at which `due` has to be called; None while a batch runs or nothing waits."""
        return self._waiting[0][0] + self._max_wait_s if self._waiting and not self._running else None

    @property
    def held_up(self) -> list[T]:
        """The calls that wait for the running batch."""
        return [item for _, item, _ in self._waiting] if self._running else []

    def discard(self, item: T) -> bool:
        """Remove a call that was given up; False if it does not wait here."""
        for index, (_, waiting, _) in enumerate(self._waiting):
            if waiting is item:
                del self._waiting[index]
                return True
        return False

    def take(self) -> list[T]:
        """Remove and return all waiting calls, at the end of the service."""
        items = [item for _, item, _ in self._waiting]
        self._waiting.clear()
        return items

    def sized(self, size_of_call: float) -> None:
        """Note the average size of the calls in the last batch."""
        self._size_of_call = max(size_of_call, 1e-9)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) * self._size_of_call >= self._max_size

    @property
    def _all_here(self) -> bool:
        return self._expected <= {caller for _, _, caller in self._waiting}

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True  # also while it is empty: `if queue` asks whether there is one


__all__ = ["BatchQueue"]
