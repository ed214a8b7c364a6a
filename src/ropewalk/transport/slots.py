"""Slots: messages from one process of a host to others, in shared memory, and a doorbell that announces them.

    sender                                                receiver
    1 claim a free slot       flags │1│1│0│0│ slots │   │   │   │   │      of one size; together they are a slab
    2 write the message into it
    3 a record in the receiver's pipe ──────────────────▶ 4 read it, map the slab
                                                          5 compute in the slot itself
    7 claim it again                                      6 the last reference to it dies: its flag becomes 0

Slots become free in any order, whenever the receiver does not need them any more. If none is free another slab is
added, so claiming never waits; callers that need a bound count messages. The pipe orders memory as well: what was
written before a record is seen after reading it. Memory and pipe have no names. Other processes find them by their
places in /proc, and they are gone with the processes; a process that dies leaves no partial message, as records are
written whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import select
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ropewalk.errors import PeerLost
from ropewalk.transport.kernel import memory_file

ALIGN = 64
_RECORD = struct.Struct("<HHIQQQQ")
_MOST_RECORDS = select.PIPE_BUF // _RECORD.size
"""This many records at once are written whole or not at all."""
_READ_BYTES = 1600 * _RECORD.size
"""A multiple of the record size, so that reads return whole records."""
_SMALL_BYTES = 1 << 10
"""The smallest slot, and the least size of the first slab of a slot size."""
_FIRST_SLAB_BYTES = 64 << 10
_SLAB_BYTES = 16 << 20
"""A slab is at most this large, unless a single slot is larger."""
_MESSAGE, _RING = 0, 1


@dataclass(frozen=True, slots=True)
class OpenFile:
    """The place at which other processes of the host find a file that a process has open."""

    pid: int
    fd: int
    identity: tuple[int, int]
    """Its device and inode, as another file may be at that place later."""

    @staticmethod
    def of(fd: int) -> OpenFile:
        """Return the place of a file of this process."""
        facts = os.fstat(fd)
        return OpenFile(os.getpid(), fd, (facts.st_dev, facts.st_ino))

    def open(self, flags: int) -> int:
        """Open the file; the caller closes the descriptor.

        Raises:
            PeerLost: the file is not there any more.
        """
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            problem = f"process {self.pid} is gone or has closed what it shared at {path} ({error.strerror})"
            raise PeerLost(problem, peer=path) from None
        facts = os.fstat(fd)
        if (facts.st_dev, facts.st_ino) != self.identity:
            os.close(fd)
            problem = f"what process {self.pid} shared at {path} is closed, and something else is there now"
            raise PeerLost(problem, peer=path)
        return fd


@dataclass(frozen=True, slots=True)
class _Slab:
    mapping: mmap.mmap
    address: int
    offset: int
    """Offset of the slab in the file, in bytes."""
    size_bytes: int
    slots_at: int
    num_slots: int


class Slot(NamedTuple):
    """Claimed memory for one message."""

    address: int
    """Address at which to write the message; a multiple of `ALIGN`."""
    slab: _Slab
    number: int


class SlotMemory:
    """The memory of a sender, for all its receivers; for one thread."""

    def __init__(self) -> None:
        self._fd = memory_file("ropewalk-slots")
        self._end = 0
        self._slabs: dict[int, list[_Slab]] = {}

    @property
    def place(self) -> OpenFile:
        """Where receivers find the memory."""
        return OpenFile.of(self._fd)

    @property
    def size_bytes(self) -> int:
        """Size of all slabs in bytes; pages that were never written to take no memory."""
        return self._end

    def claim(self, size_bytes: int) -> Slot:
        """Claim a free slot for a message.

        Raises:
            OSError: no memory, or no descriptor, is left for another slab.
        """
        slot_bytes = _slot_bytes(size_bytes)
        slabs = self._slabs.setdefault(slot_bytes, [])
        for slab in slabs:
            number = slab.mapping.find(b"\0", 0, slab.num_slots)
            if number >= 0:
                break
        else:
            slab, number = self._further(slot_bytes, slabs), 0
        slab.mapping[number] = 1
        return Slot(slab.address + slab.slots_at + number * slot_bytes, slab, number)

    def close(self) -> None:
        """Release the memory; slabs that receivers have opened stay until they close them. May be called twice."""
        self._slabs.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the attribute was never set
            self.close()

    def _further(self, slot_bytes: int, slabs: list[_Slab]) -> _Slab:
        """Add as many slots as there are of this size, or as many as there is memory for."""
        self._give_back_idle()
        there = sum(slab.num_slots for slab in slabs)
        num_slots = max(1, min(there or _FIRST_SLAB_BYTES // slot_bytes, _SLAB_BYTES // slot_bytes))
        while True:
            try:
                slab = self._mapped(slot_bytes, num_slots)
            except OSError:
                if num_slots == 1:
                    raise
                num_slots //= 2
            else:
                slabs.append(slab)
                return slab

    def _mapped(self, slot_bytes: int, num_slots: int) -> _Slab:
        slots_at = -(-num_slots // ALIGN) * ALIGN
        size_bytes = -(-(slots_at + num_slots * slot_bytes) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        os.ftruncate(self._fd, self._end + size_bytes)
        mapping = mmap.mmap(self._fd, size_bytes, offset=self._end)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        slab = _Slab(mapping, address, self._end, size_bytes, slots_at, num_slots)
        self._end += size_bytes
        return slab

    def _give_back_idle(self) -> None:
        """Free the pages of slabs without a slot in use: later messages may have another size."""
        for slabs in self._slabs.values():
            for slab in slabs:
                if slab.size_bytes > _FIRST_SLAB_BYTES and slab.mapping.find(b"\1", 0, slab.num_slots) < 0:
                    with contextlib.suppress(OSError):
                        slab.mapping.madvise(mmap.MADV_REMOVE)


def _slot_bytes(size_bytes: int) -> int:
    """Return the slot size for such messages: four sizes between a power of two and the next."""
    size_bytes = max(size_bytes, _SMALL_BYTES)
    step = 1 << (size_bytes - 1).bit_length() - 3
    return -(-size_bytes // step) * step


class Announced(NamedTuple):
    """A message that has arrived."""

    sender: int
    number: int
    """Number of the slot in its slab."""
    slab_offset: int
    slab_bytes: int
    at: int
    size_bytes: int


class PeerSlots:
    """The memory of a sender as one of its receivers sees it.

    Raises:
        PeerLost: the sender is gone.
    """

    def __init__(self, place: OpenFile) -> None:
        self._fd = place.open(os.O_RDWR)
        self._slabs: dict[int, mmap.mmap] = {}
        self._in_use: dict[int, weakref.ref[memoryview]] = {}
        """Messages in use, by slot; the weak references must be kept for their callbacks."""

    def open(self, message: Announced) -> memoryview:
        """Return a writable view of a message in place.

        Its slot is free when the last reference to the view is gone.
        """
        slab = self._slabs.get(message.slab_offset)
        if slab is None:
            slab = self._slabs[message.slab_offset] = mmap.mmap(
                self._fd, message.slab_bytes, offset=message.slab_offset
            )
        memory = memoryview(slab)[message.at : message.at + message.size_bytes]
        key = message.slab_offset + message.at
        in_use, number = self._in_use, message.number

        def free(_: object) -> None:
            del in_use[key]  # before the flag: the sender may claim the slot at once
            slab[number] = 0

        in_use[key] = weakref.ref(memory, free)
        return memory

    def close(self) -> None:
        """Release the memory; messages in use stay readable. May be called twice."""
        self._slabs.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.close()


class Doorbell:
    """A pipe in which records of messages and of rings arrive.

    One thread listens. Any thread may `ring`.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self._lock = threading.Lock()

    @property
    def place(self) -> OpenFile:
        """Where other processes find the end to write to."""
        return OpenFile.of(self._write)

    def fileno(self) -> int:
        """The descriptor of the end to read from, for polling."""
        return self._read

    def ring(self) -> None:
        """Wake the listening thread of this process."""
        with self._lock:
            if self._write >= 0:
                with contextlib.suppress(BlockingIOError):  # it is rung already
                    os.write(self._write, _ring)

    def heard(self) -> tuple[list[Announced], bool]:
        """Return what has arrived since the last call: messages, and whether there was anything at all."""
        try:
            data = os.read(self._read, _READ_BYTES)
        except BlockingIOError:
            return [], False
        records: Iterator[tuple[int, ...]] = _RECORD.iter_unpack(data)
        return [Announced(*facts) for kind, *facts in records if kind == _MESSAGE], True

    def close(self) -> None:
        """Close it; may be called twice."""
        with self._lock:
            for fd in (self._read, self._write):
                if fd >= 0:
                    os.close(fd)
            self._read = self._write = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.close()


_ring = _RECORD.pack(_RING, 0, 0, 0, 0, 0, 0)


@dataclass(slots=True, eq=False)
class DoorbellHandle:
    """The doorbell of another process, as its callers see it.

    It never waits: records that the pipe has no room for are kept.

    Raises:
        PeerLost: that process is gone.
    """

    place: OpenFile
    me: int
    """The number of this process at the receiver."""
    is_lost: bool = False
    _fd: int = -1
    _kept: deque[bytes] = field(default_factory=deque[bytes])

    def __post_init__(self) -> None:
        self._fd = self.place.open(os.O_WRONLY | os.O_NONBLOCK)

    def fileno(self) -> int:
        """The descriptor, for polling until there is room."""
        return self._fd

    def announce(self, slot: Slot, size_bytes: int) -> None:
        """Announce that a message of `size_bytes` bytes is in a slot."""
        slab = slot.slab
        at = slot.address - slab.address
        self._kept.append(_RECORD.pack(_MESSAGE, self.me, slot.number, slab.offset, slab.size_bytes, at, size_bytes))
        self.flush()

    @property
    def is_behind(self) -> bool:
        """Return whether records are kept."""
        return bool(self._kept)

    def flush(self) -> None:
        """Write the records that are kept; those for a process that is gone are dropped."""
        kept = self._kept
        while kept and self._fd >= 0:
            count = min(len(kept), _MOST_RECORDS)
            try:
                os.write(self._fd, kept[0] if count == 1 else b"".join(itertools.islice(kept, count)))
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.is_lost = True
                kept.clear()
                return
            for _ in range(count):
                kept.popleft()

    def close(self) -> None:
        """Close it; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


__all__ = ["ALIGN", "Announced", "Doorbell", "DoorbellHandle", "OpenFile", "PeerSlots", "Slot", "SlotMemory"]
