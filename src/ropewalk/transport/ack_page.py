"""A page that two processes of a host share, in which one notes which answers have arrived.

A store into memory costs nothing, and it stands there also after SIGKILL: so the other side knows of every value that
it lent whether it has arrived, without a message for each.

    number 8193 ─▶ slot 8193 % 8192: 8193 ─ the other side has seen it ─▶ 0

Values can also be lent many at once, as a *lot*: then the receiver begins them one after the other, without a word, and
the lender can take back what was not begun, at any moment and without the receiver's help. Each lot has three words:

    begun   │ the value that the receiver has begun last
    fence   │ OPEN, or CLOSING while the lender looks, or the first value that is the lender's again
    watched │ 1 if the lender wants to hear, once, that a value has been begun

The receiver writes `begun` and then reads the fence; the lender closes the fence, makes every CPU pass a memory barrier
(membarrier(2)), and then reads `begun`: at least one of them sees the other. What the lender sees as begun is the
receiver's; the lender says so in the fence, and until then the receiver waits. In the same way the lender first wants
to hear and then reads `begun`, and the receiver first writes it and then looks whether the lender wants to hear.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from ropewalk.transport.barriers import full_barrier
from ropewalk.transport.kernel import memory_file

#: Far more than calls can be under way over one link, so that two of them hardly ever share a slot.
_NUM_SLOTS = 8192
#: One for each handle that takes values in lots; a handle without one takes them singly.
NUM_LOTS = 512
_LOT_WORDS = 3
_SIZE_BYTES = 8 * (_NUM_SLOTS + _LOT_WORDS * NUM_LOTS)
#: States of a fence besides the numbers of values.
_OPEN, _CLOSING = 2**62, 2**62 + 1
#: The lender needs microseconds to close a fence, but may be interrupted; so many looks before it is asked.
_NUM_LOOKS, _LOOK_S = 20, 0.0001
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class AckPage:
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
        """
        fd = memory_file("ropewalk-taken", sealable=True)
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
        """Give the memory back, with its lots; may be called twice."""
        self._slots.release()
        if not self._memory.closed:
            self._memory.close()

    def lot(self, place: int) -> AckLease:
        """The lot in one of its `NUM_LOTS` places."""
        return AckLease(self._slots, _NUM_SLOTS + _LOT_WORDS * place)


class AckLease:
    """Values 0, 1, 2, ... that are lent together; value 0 counts as begun from the start."""

    def __init__(self, words: memoryview, begun_at: int) -> None:
        self._words = words
        self._begun_at = begun_at
        self._fence_at = begun_at + 1
        self._watched_at = begun_at + 2
        self._num_begun: int | None = None

    # The receiver

    def begin(self, value: int) -> bool | None:
        """Claim a value, each after the one before it; again has no effect.

        Returns:
            Whether it is ours; None while the lender does not say.

        Raises:
            ValueError: the page was closed; then all that was not begun is the lender's.
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
        """After `begin`: whether the lender wants to hear of it."""
        return bool(self._words[self._watched_at])

    def unwatch(self) -> None:
        """The lender is about to hear of it; before it does."""
        self._words[self._watched_at] = 0

    # The lender

    def open(self) -> None:
        """Lend; the receiver does not look at it before it is told."""
        self._num_begun = None
        self._words[self._begun_at] = self._words[self._watched_at] = 0
        self._words[self._fence_at] = _OPEN

    def close(self) -> int:
        """Take back what was not begun; returns how many were. May be called twice."""
        if self._num_begun is None:
            words, fence_at = self._words, self._fence_at
            words[fence_at] = _CLOSING
            full_barrier()
            self._num_begun = words[fence_at] = words[self._begun_at] + 1
        return self._num_begun

    def watch(self) -> None:
        """Want to hear of the next value that is begun; one may have been begun before, so look at `num_begun` now."""
        self._words[self._watched_at] = 1
        full_barrier()

    @property
    def num_begun(self) -> int:
        """How many were begun by now."""
        return self._words[self._begun_at] + 1 if self._num_begun is None else self._num_begun


__all__ = ["NUM_LOTS", "AckLease", "AckPage"]
