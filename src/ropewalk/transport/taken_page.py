"""A page that two processes of a host share, in which one notes which answers have arrived.

A store into memory costs nothing, and it stands there also after SIGKILL: so the other side knows of every value that
it lent whether it has arrived, without a message for each.

    number 8193 ─▶ slot 8193 % 8192: 8193 ─ the other side has seen it ─▶ 0
"""

from __future__ import annotations

import fcntl
import mmap
import os

#: Far more than calls can be under way over one link, so that two of them hardly ever share a slot.
_NUM_SLOTS = 8192
_SIZE_BYTES = 8 * _NUM_SLOTS
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


class TakenPage:
    """One side of the page.

    Args:
        fd: of a memory file that `create` made; stays the caller's.

    Raises:
        OSError: it cannot be mapped, or might be truncated while it is.
    """

    def __init__(self, fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != _SIZE_BYTES:
            raise OSError("the memory file is not as it should be")  # touching it could end this process
        self._memory = mmap.mmap(fd, _SIZE_BYTES)
        self._slots = memoryview(self._memory).cast("Q")

    @staticmethod
    def create() -> int:
        """The descriptor of a new memory file.

        Raises:
            OSError: out of descriptors or memory.
            AttributeError: this system has no such files.
        """
        fd = os.memfd_create("ropewalk-taken", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _SIZE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return fd

    def note(self, number: int) -> bool:
        """Note that the answer to this call has arrived; False if its slot has another one that was not seen yet."""
        slot = number % _NUM_SLOTS
        if self._slots[slot]:
            return False
        self._slots[slot] = number
        return True

    def see(self, number: int) -> bool:
        """Whether it has arrived; true once, and its slot is free again."""
        slot = number % _NUM_SLOTS
        if self._slots[slot] != number:
            return False
        self._slots[slot] = 0
        return True

    def close(self) -> None:
        """Give the memory back; may be called twice."""
        self._slots.release()
        if not self._memory.closed:
            self._memory.close()


__all__ = ["TakenPage"]
