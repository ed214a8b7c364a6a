"""Memory that processes of one host share: an unnamed file, which lives while it is referred to.

depot ── /proc/PID/fd/N ──▶ processes of this host map it; their writes never pass through here
"""

from __future__ import annotations

import os
from typing import ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Waiter
from ropewalk.transport.kernel import memory_file


class MemoryState:
    """Zeroed memory, written to by the processes that have mapped it.

    Args:
        size_bytes: the size of the memory.

    Raises:
        OSError: there is not enough memory, or no descriptor for it.
    """

    METHODS: ClassVar = frozenset({"place"})
    SEALED: ClassVar = frozenset[str]()

    def __init__(self, size_bytes: int) -> None:
        self._fd = memory_file("ropewalk-memory")
        os.ftruncate(self._fd, max(1, size_bytes))

    def place(self, waiter: Waiter) -> list[CallOutcome]:
        """Return the path at which every process of this user on this host finds it."""
        return [CallOutcome(waiter, f"/proc/{os.getpid()}/fd/{self._fd}")]

    def close(self) -> None:
        """Close the file: no process can map it any more; the memory is freed with its last mapping."""
        os.close(self._fd)

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """Do nothing: no call waits here."""
        return []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Do nothing: nothing is lent here."""
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Do nothing: no process owns any of it."""
        return []
