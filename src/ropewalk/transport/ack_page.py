"""A page that two processes of a host share, in which the receiver notes which answers have arrived.

A store into memory costs nothing, and survives SIGKILL. So the lender of a value knows whether it has arrived, without
a message for each.

    number 8193 ─▶ slot 8193 % 8192: 8193 ─ the other side has seen it ─▶ 0

Values can also be lent together, as a *lot*. The receiver then begins them one after the other, without a message, and
the lender can take back those that were not begun, at any moment and without the receiver's help. Each lot has three
words:

    begun   │ the value that the receiver has begun last
    fence   │ OPEN, or CLOSING while the lender looks, or the first value that is the lender's again
    watched │ 1 if the lender wants to be told, once, that a value has been begun

The receiver writes `begun` and then reads the fence; the lender closes the fence, makes every CPU pass a memory barrier
(membarrier(2)), and then reads `begun`: at least one of them sees the other. A value that the lender sees as begun
belongs to the receiver; the lender writes so into the fence, and until then the receiver waits. `watched` works in the
same way: the lender first sets it and then reads `begun`, and the receiver first writes `begun` and then reads
`watched`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from ropewalk.transport.barriers import full_barrier
from ropewalk.transport.kernel import memory_file

_NUM_SLOTS = 8192
"""The lender needs microseconds to close a fence, but may be interrupted: the receiver looks this often before it asks.
"""
NUM_LOTS = 512
"""One for each handle that takes values in lots; a handle without one takes them singly."""
_LOT_WORDS = 3
_SIZE_BYTES = 8 * (_NUM_SLOTS + _LOT_WORDS * NUM_LOTS)
_OPEN, _CLOSING = 2**62, 2**62 + 1
"""States of a fence besides the numbers of values."""
_NUM_LOOKS, _LOOK_S = 20, 0.0001
"""How often the receiver looks before it asks: the lender needs microseconds to close a fence, but may be interrupted.
"""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class AckPage:
    """One side of the page.

    Args:
        fd: descriptor of a memory file that `create` made; it stays the caller's.

    Raises:
        OSError: the file cannot be mapped, or might be truncated while it is mapped.
    """

    def __init__(self, fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != _SIZE_BYTES:
            raise OSError("the memory file is not as it should be")  # touching it could end this process
        self._memory = mmap.mmap(fd, _SIZE_BYTES)
        self._slots = memoryview(self._memory).cast("Q")

    @staticmethod
    def create() -> int:
        """Return the descriptor of a new memory file.

        Raises:
            OSError: no descriptors or no memory are left.
        """
        fd = memory_file("ropewalk-taken", sealable=True)
        os.ftruncate(fd, _SIZE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return fd

    def note(self, number: int) -> bool:
        """Note that the answer to call `number` has arrived.

        Returns False if its slot holds another number that was not seen yet.
        """
        slot = number % _NUM_SLOTS
        if self._slots[slot]:
            return False
        self._slots[slot] = number
        return True

    def see(self, number: int) -> bool:
        """Return whether the answer has arrived; True once, after which its slot is free again."""
        slot = number % _NUM_SLOTS
        if self._slots[slot] != number:
            return False
        self._slots[slot] = 0
        return True

    def close(self) -> None:
        """Unmap the memory, with its lots; may be called twice."""
        self._slots.release()
        if not self._memory.closed:
            self._memory.close()

    def lot(self, place: int) -> AckLease:
        """Return the lot at one of the `NUM_LOTS` places."""
        return AckLease(self._slots, _NUM_SLOTS + _LOT_WORDS * place)


class AckLease:
    """Values 0, 1, 2, ... that are lent together; value 0 counts as begun from the start."""

    def __init__(self, words: memoryview, begun_at: int) -> None:
        self._words = words
        self._begun_at = begun_at
        self._fence_at = begun_at + 1
        self._watched_at = begun_at + 2
        self._num_begun: int | None = None

    # The receiver's side

    def begin(self, value: int) -> bool | None:
        """Claim a value, each after the one before it; repeating a claim has no effect.

        Returns:
            Whether the value belongs to the receiver; None while the lender is deciding.

        Raises:
            ValueError: the page was closed; all values that were not begun belong to the lender.
        """
        words, fence_at = self._words, self._fence_at
        words[self._begun_at] = value
        fence = words[fence_at]
        if fence == _OPEN:
            return True
        for _ in range(_NUM_LOOKS):
            if fence != _CLOSING:
                return value < fence
            time.sleep(_LOOK_S)
            fence = words[fence_at]
        return None

    @property
    def is_watched(self) -> bool:
        """Return, after `begin`, whether the lender wants to be told of it."""
        return bool(self._words[self._watched_at])

    def unwatch(self) -> None:
        """Note that the lender is about to be told; called before telling it."""
        self._words[self._watched_at] = 0

    # The lender's side

    def open(self) -> None:
        """Lend the values; the receiver does not look at the lot before it is told."""
        self._num_begun = None
        self._words[self._begun_at] = self._words[self._watched_at] = 0
        self._words[self._fence_at] = _OPEN

    def close(self) -> int:
        """Take back the values that were not begun; returns how many were begun. May be called twice."""
        if self._num_begun is None:
            words, fence_at = self._words, self._fence_at
            words[fence_at] = _CLOSING
            full_barrier()
            self._num_begun = words[fence_at] = words[self._begun_at] + 1
        return self._num_begun

    def watch(self) -> None:
        """Ask to be told of the next value that is begun.

        One may have been begun before, so read `num_begun` afterwards.
        """
        self._words[self._watched_at] = 1
        full_barrier()

    @property
    def num_begun(self) -> int:
        """Return how many values have been begun by now."""
        return self._words[self._begun_at] + 1 if self._num_begun is None else self._num_begun


__all__ = ["NUM_LOTS", "AckLease", "AckPage"]
