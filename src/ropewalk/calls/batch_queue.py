"""Gathers calls of one method until it is time for a batch. Pure.

    a call comes ─▶ full?                                            ─▶ go
                    all who took part in the last batch are here?    ─▶ go: nobody else is expected
                    the first one has waited `max_wait_s`?           ─▶ go

So a caller that is alone never waits for others, and callers that come again and again find each other in one batch. A
caller that has stopped calling keeps the others waiting once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchQueue(Generic[T]):
    """Calls that wait for others.

    One batch runs at a time. Calls that come meanwhile gather, and their waiting
    counts; so under load the next batch goes as soon as the one before it is done.

    Args:
        max_size: of a batch.
        max_wait_s: how long a call waits at most for others, beside those that run.
    """

    def __init__(self, max_size: int, max_wait_s: float) -> None:
        self._max_size = max_size
        self._max_wait_s = max_wait_s
        self._waiting: deque[tuple[float, T, Hashable]] = deque()
        self._running = False
        self._expected: set[Hashable] = set()
        """The callers of the last batch, as far as they are there."""
        self._size_of_call = 1.0
        """How much of a batch one call is, as far as that is known."""

    def add(self, item: T, caller: Hashable, now: float, *, more: bool = False) -> list[T]:
        """A call has come: the batch to run now, or nothing.

        Args:
            item: the call.
            caller: who made it.
            now: monotonic time in seconds.
            more: others have come with it, so that it only goes at once if it completes a batch; ask `due` after them.
        """
        self._waiting.append((now, item, caller))
        return [] if more and not self._is_full and now < self._waiting[0][0] + self._max_wait_s else self.due(now)

    def due(self, now: float) -> list[T]:
        """The batch to run now, or nothing. `done` must follow it."""
        due = self.next_due
        if due is None or (now < due and not self._is_full and not self._all_here):
            return []
        self._running = True
        count = min(len(self._waiting), max(1, round(self._max_size / self._size_of_call)))
        batch = [self._waiting.popleft() for _ in range(count)]
        self._expected = {caller for _, _, caller in batch}
        return [item for _, item, _ in batch]

    def done(self, now: float) -> list[T]:
        """The batch that ran is done: the next one to run now, or nothing."""
        self._running = False
        return self.due(now)

    def gone(self, caller: Hashable, now: float) -> list[T]:
        """A caller will not come again: the batch to run now, or nothing."""
        self._expected.discard(caller)
        return self.due(now)

    @property
    def next_due(self) -> float | None:
        """When `due` is to be asked at the latest; None while a batch runs or nothing waits."""
        return self._waiting[0][0] + self._max_wait_s if self._waiting and not self._running else None

    @property
    def held_up(self) -> list[T]:
        """What waits for the batch that runs."""
        return [item for _, item, _ in self._waiting] if self._running else []

    def discard(self, item: T) -> bool:
        """A call was given up; False if it does not wait here."""
        for index, (_, waiting, _) in enumerate(self._waiting):
            if waiting is item:
                del self._waiting[index]
                return True
        return False

    def take(self) -> list[T]:
        """Everything that waits, for the end of the service."""
        items = [item for _, item, _ in self._waiting]
        self._waiting.clear()
        return items

    def sized(self, size_of_call: float) -> None:
        """The calls of the last batch had this size on average."""
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
