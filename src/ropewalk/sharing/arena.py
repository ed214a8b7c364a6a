"""The memory that a depot shares with the processes of its host: records of objects, and semaphores to sleep at.

    │ head │ seat 1: 64 semaphores │ seat 2 │ ... │ record 1: mutex, words, two buffers │ record 2 │ ... │ items 1 │ ...

A process has a *seat*, a number, over its link to the depot; its threads sleep at the semaphores of that seat. A queue
has also memory for its items, which only the processes that use it map. The file has no name and is sparse: pages that
were never written to take no memory. Objects and processes that find no room in it, and those of other hosts, are
served by calls to the depot.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets

from ropewalk.transport.kernel import memory_file
from ropewalk.transport.process_mutex import SEMAPHORE_BYTES, are_mutexes_possible, layout, make_mutex, make_semaphore

NUM_SEATS = 512
"""Processes of the host that can use the records at a time."""
NUM_BERTHS = 64
"""Threads of a process that can sleep at records at a time."""
NUM_RECORDS = 512
"""Objects that have a record, at most; further ones are served by calls."""
RECORD_BYTES = 256 << 10
"""Bytes of a record, which is enough for about a thousand waiting threads."""
ITEM_BYTES = 16 << 20
"""Bytes of the items of a queue, at most; with more of them it is kept by its depot."""
_HEAD = mmap.PAGESIZE
_SEAT_BYTES = NUM_BERTHS * SEMAPHORE_BYTES
_FIRST_RECORD = _HEAD + NUM_SEATS * _SEAT_BYTES
_FIRST_ITEMS = _FIRST_RECORD + NUM_RECORDS * RECORD_BYTES
_FILE_BYTES = _FIRST_ITEMS + NUM_RECORDS * ITEM_BYTES


class Arena:
    """The mapped memory.

    Args:
        fd: of the file, which is closed with this object.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.memory = mmap.mmap(fd, _FIRST_ITEMS)
        self.view = memoryview(self.memory)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def __del__(self) -> None:
        os.close(self._fd)

    @property
    def mark(self) -> bytes:
        """The random bytes by which a process knows that it has mapped the right file."""
        return bytes(self.view[:16])

    def berth(self, seat: int, number: int) -> int:
        """Return the address of a semaphore of a seat, counted from 1."""
        return self._start + _HEAD + (seat - 1) * _SEAT_BYTES + number * SEMAPHORE_BYTES

    def record(self, slot: int) -> tuple[int, memoryview]:
        """Return the address and the memory of a record, counted from 1."""
        offset = self.record_at(slot)
        return self._start + offset, self.view[offset : offset + RECORD_BYTES]

    @staticmethod
    def record_at(slot: int) -> int:
        """Return the offset of a record in the memory."""
        return _FIRST_RECORD + (slot - 1) * RECORD_BYTES

    def items(self, slot: int) -> mmap.mmap:
        """Map the `ITEM_BYTES` for the items of the queue that has a record; raises OSError."""
        return mmap.mmap(self._fd, ITEM_BYTES, offset=_FIRST_ITEMS + (slot - 1) * ITEM_BYTES)


class DepotArena(Arena):
    """The arena as its depot has it, which gives out seats and records.

    Raises:
        OSError: there is not enough memory, or no descriptor for it.
    """

    def __init__(self) -> None:
        fd = memory_file("ropewalk-records")
        try:
            os.ftruncate(fd, _FILE_BYTES)
        except OSError:
            os.close(fd)
            raise
        super().__init__(fd)
        self.view[:16] = secrets.token_bytes(16)
        self._free_seats = list(range(NUM_SEATS, 0, -1))
        self._free_records = list(range(NUM_RECORDS, 0, -1))

    @property
    def place(self) -> str:
        """The path at which processes of this user on this host find the file."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def take_seat(self) -> int:
        """Return a free seat; 0 if there is none."""
        if not self._free_seats:
            return 0
        seat = self._free_seats.pop()
        for number in range(NUM_BERTHS):
            make_semaphore(self.berth(seat, number))
        return seat

    def free_seat(self, seat: int) -> None:
        """Take a seat back, to which no record refers any more."""
        self._free_seats.append(seat)

    def take_record(self) -> int:
        """Return a free record, zeroed and with its mutex; 0 if there is none."""
        if not self._free_records:
            return 0
        slot = self._free_records.pop()
        address, view = self.record(slot)
        view[: mmap.PAGESIZE] = bytes(mmap.PAGESIZE)
        make_mutex(address)
        return slot

    def free_record(self, slot: int) -> None:
        """Take a record back, which no process uses any more."""
        self._free_records.append(slot)


def mapped(place: str, mark: bytes, of_layout: int) -> Arena | None:
    """Return the arena of a depot of this host; None if this process cannot reach or use it.

    Args:
        place: the path of its file.
        mark: its random bytes: a path of another process namespace could lead to another file.
        of_layout: the layout of its mutexes.
    """
    if of_layout != layout() or not are_mutexes_possible():
        return None
    try:
        fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(fd).st_size != _FILE_BYTES:
        os.close(fd)
        return None
    try:
        arena = Arena(fd)
    except (OSError, ValueError):
        return None
    return arena if secrets.compare_digest(arena.mark, mark) else None


__all__ = ["ITEM_BYTES", "NUM_BERTHS", "NUM_RECORDS", "NUM_SEATS", "RECORD_BYTES", "Arena", "DepotArena", "mapped"]
