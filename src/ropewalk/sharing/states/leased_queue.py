"""A line of items, of which some are lent: gone for everybody else, but back in their old places if not taken.

append ─▶ 5 4 3 ─▶ lend ─▶ (2 to A) (1 to B)        A dies:  5 4 3 2        then B dies:  5 4 3 2 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ropewalk.sharing.states.waiting import CallOutcome, SizedItem, Waiter


class LeasedQueue:
    """Items, first come first served. `len` and `size_bytes` count those that are not lent."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._items: deque[tuple[int, SizedItem]] = deque()
        self._lent: dict[Waiter, tuple[int, SizedItem]] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_lent(self) -> int:
        """How many items are on their way to somebody."""
        return len(self._lent)

    def append(self, item: SizedItem) -> None:
        """Take an item in, behind all others."""
        self._items.append((self._next_number, item))
        self._next_number += 1
        self.size_bytes += item.size_bytes

    def lend(self, waiter: Waiter) -> CallOutcome:
        """Lend the first item to a call, which ends with it."""
        _, item = self._lent[waiter] = self._items.popleft()
        self.size_bytes -= item.size_bytes
        return CallOutcome(waiter, item, lent=True)

    def taken(self, waiter: Waiter) -> None:
        """Forget what was lent to this call: it has arrived."""
        self._lent.pop(waiter, None)

    def give_back(self, waiter: Waiter) -> bool:
        """Put what was lent to this call back before all that came after it.

        Returns:
            Whether anything was lent to it.
        """
        lent = self._lent.pop(waiter, None)
        if lent is None:
            return False
        self._insert(lent)
        return True

    def take(self, most: int, most_bytes: int) -> list[tuple[int, SizedItem]]:
        """Take out the first items that are light, with their numbers; so many, of so many bytes, at most."""
        entries: list[tuple[int, SizedItem]] = []
        items = self._items
        while items and len(entries) < most:
            item = items[0][1]
            most_bytes -= item.size_bytes
            if most_bytes < 0 or not item.is_light:
                break
            self.size_bytes -= item.size_bytes
            entries.append(items.popleft())
        return entries

    def put_back(self, entries: Sequence[tuple[int, SizedItem]]) -> None:
        """Put what was taken out back into its old places."""
        for entry in reversed(entries):
            self._insert(entry)

    def _insert(self, entry: tuple[int, SizedItem]) -> None:
        number, item = entry
        # Only those that were given back before can stand before it, so this looks at few.
        place = next((place for place, (other, _) in enumerate(self._items) if other > number), len(self._items))
        self._items.insert(place, entry)
        self.size_bytes += item.size_bytes

    def give_back_all_of(self, process: str) -> None:
        """Put back whatever was lent to the calls of a process."""
        for waiter in [waiter for waiter in self._lent if waiter.party.process == process]:
            self.give_back(waiter)

    def clear(self) -> None:
        """Drop all items, also those that are lent."""
        self._items.clear()
        self._lent.clear()
        self.size_bytes = 0
