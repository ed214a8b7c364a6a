"""A queue of items, some of which are lent: hidden from all others, but back in their old places if not taken.

append ─▶ 5 4 3 ─▶ lend ─▶ (2 to A) (1 to B)        A dies:  5 4 3 2        then B dies:  5 4 3 2 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ropewalk.sharing.states.waiting import CallOutcome, SizedItem, Waiter


class LeasedQueue:
    """Items, first in, first out. `len` and `size_bytes` count those that are not lent."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._items: deque[tuple[int, SizedItem]] = deque()
        self._lent: dict[Waiter, tuple[int, SizedItem]] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_lent(self) -> int:
        """The number of items that are on their way to a process."""
        return len(self._lent)

    def append(self, item: SizedItem) -> None:
        """Add an item at the end."""
        self._items.append((self._next_number, item))
        self._next_number += 1
        self.size_bytes += item.size_bytes

    def lend(self, waiter: Waiter) -> CallOutcome:
        """Lend the first item to a call, which ends with it."""
        _, item = self._lent[waiter] = self._items.popleft()
        self.size_bytes -= item.size_bytes
        return CallOutcome(waiter, item, lent=True)

    def taken(self, waiter: Waiter) -> None:
        """Forget the item lent to this call: it has arrived."""
        self._lent.pop(waiter, None)

    def pass_on(self, waiter: Waiter, other: Waiter) -> SizedItem | None:
        """Lend the item lent to a call to another one; returns it, None if there is none."""
        lent = self._lent.pop(waiter, None)
        if lent is None:
            return None
        self._lent[other] = lent
        return lent[1]

    def give_back(self, waiter: Waiter) -> bool:
        """Put the item lent to this call back, before all later ones.

        Returns:
            Whether an item was lent to it.
        """
        lent = self._lent.pop(waiter, None)
        if lent is None:
            return False
        self._insert(lent)
        return True

    @property
    def items(self) -> list[SizedItem]:
        """Those that are not lent."""
        return [item for _, item in self._items]

    def take(self, most: int, most_bytes: int) -> list[tuple[int, SizedItem]]:
        """Remove the first small items, with their numbers; at most `most` items of at most `most_bytes` bytes."""
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

    def take_all(self) -> list[tuple[int, SizedItem]]:
        """Remove all items that are not lent, with their numbers."""
        entries = list(self._items)
        self._items.clear()
        self.size_bytes = 0
        return entries

    def put_back(self, entries: Sequence[tuple[int, SizedItem]]) -> None:
        """Put removed items back into their old places."""
        for entry in reversed(entries):
            self._insert(entry)

    def _insert(self, entry: tuple[int, SizedItem]) -> None:
        number, item = entry
        # Only items that were given back before can precede it, so this examines few.
        place = next((place for place, (other, _) in enumerate(self._items) if other > number), len(self._items))
        self._items.insert(place, entry)
        self.size_bytes += item.size_bytes

    def give_back_all_of(self, process: str) -> None:
        """Put back all items lent to the calls of a process."""
        for waiter in [waiter for waiter in self._lent if waiter.party.process == process]:
            self.give_back(waiter)

    def clear(self) -> None:
        """Drop all items, lent ones included."""
        self._items.clear()
        self._lent.clear()
        self.size_bytes = 0
