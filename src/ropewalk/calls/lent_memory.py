"""Memory that a service lends to a caller on its host: large answers are made in place, and copied by neither side.

    service                                              caller
    1 lend ─▶ a free place in its memory
    2 make the answer there
    3 answer with `LentMemory` ────────────────────────▶ 4 open: a view of the same memory
    6 lend it again                                      5 the last reference to the view dies: the place is free

The memory is warm, which a new memory file never is: writing 33 MB takes 3 ms instead of 20.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from ropewalk.calls import call_context
from ropewalk.transport.link import Link
from ropewalk.transport.slots import Announced, OpenFile, PeerSlots, Slot, SlotMemory

MOST_LENT = 8
"""Places that one caller has at most. One whose answer got lost on the way is not free before the caller has ended."""


@dataclass(frozen=True, slots=True)
class LentMemory:
    """Says where lent memory is.

    Attributes:
        owner: the memory of the service.
        place: within it.
    """

    owner: OpenFile
    place: Announced


class MemoryLender:
    """Lends the memory of one service; the caller provides the locking."""

    def __init__(self) -> None:
        self._memory: SlotMemory | None = None
        self._lent: dict[int, list[Slot]] = {}
        """By process, places that were lent and may be free again."""

    def lend(self, size_bytes: int, pid: int) -> tuple[memoryview, LentMemory] | None:
        """Lend memory to the caller of the running method.

        Args:
            size_bytes: size of the memory.
            pid: process of the caller.

        Returns:
            The memory, with whatever was there before, and what tells the caller where it is; None if the caller is not
            on this host, or has too much already, or there is no memory.
        """
        link = callers_link()
        if link is None or not link.stream.carries_fds:
            return None
        slots = self._lent_to(pid)
        if len(slots) >= MOST_LENT:
            return None
        try:
            if self._memory is None:
                self._memory = SlotMemory()
            slot = self._memory.claim(size_bytes)
            owner = self._memory.place
        except OSError:
            return None
        slots.append(slot)
        slab = slot.slab
        at = slot.address - slab.address
        place = Announced(0, slot.number, slab.offset, slab.size_bytes, at, size_bytes)
        return memoryview(slab.mapping)[at : at + size_bytes], LentMemory(owner, place)

    def take_back(self, lent: LentMemory, pid: int) -> None:
        """Free memory that the caller was not told of."""
        for slot in self._lent[pid]:
            if (slot.slab.offset, slot.number) == (lent.place.slab_offset, lent.place.number):
                slot.slab.mapping[slot.number] = 0

    def close(self) -> None:
        """Release the memory; what callers have opened stays until they drop it. May be called twice."""
        if self._memory:
            self._memory.close()
        self._memory = None
        self._lent.clear()

    def _lent_to(self, pid: int) -> list[Slot]:
        """The places that a process has; those of processes that have ended are freed."""
        for other in [other for other in self._lent if other != pid and not os.path.exists(f"/proc/{other}")]:
            for slot in self._lent.pop(other):
                slot.slab.mapping[slot.number] = 0
        slots = self._lent[pid] = [slot for slot in self._lent.get(pid, ()) if slot.slab.mapping[slot.number]]
        return slots


class MemoryBorrower:
    """Opens lent memory; for one caller, from any thread."""

    def __init__(self) -> None:
        self._owners: dict[OpenFile, PeerSlots] = {}
        self._lock = threading.Lock()

    def open(self, lent: LentMemory) -> memoryview:
        """Return the memory; it is free for the service again when the last reference to the view is gone.

        Raises:
            PeerLost: the service is gone.
        """
        with self._lock:
            owner = self._owners.get(lent.owner)
            if owner is None:
                self._close_owners(ended=True)  # among them the one before, if this one was started in its place
                owner = self._owners[lent.owner] = PeerSlots(lent.owner)
            return owner.open(lent.place)

    def close(self) -> None:
        """Release everything; memory that is in use stays readable. May be called twice."""
        with self._lock:
            self._close_owners(ended=False)

    def _close_owners(self, *, ended: bool) -> None:
        """Close all memory, or that of processes that have ended."""
        for owner in list(self._owners):
            if not (ended and os.path.exists(f"/proc/{owner.pid}")):
                self._owners.pop(owner).close()


def callers_link() -> Link | None:
    """The link over which the running method was called; None if its caller is in this process.

    Links within a host carry descriptors, and others do not.
    """
    running = call_context.current.get()
    return getattr(running.call if running else None, "link", None)


__all__ = ["MOST_LENT", "LentMemory", "MemoryBorrower", "MemoryLender", "callers_link"]
