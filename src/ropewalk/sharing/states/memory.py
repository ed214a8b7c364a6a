"""Memory that processes of one host share: a file without a name, which lives as long as somebody refers to it.

depot ── /proc/PID/fd/N ──▶ processes of this host map it; what they write never passes through here
"""

from __future__ import annotations

import os
from typing import ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Waiter
from ropewalk.transport.kernel import memory_file


class MemoryState:
    """Zeros at first; written to by whoever has mapped it.

    Args:
        size_bytes: how much.

    Raises:
        OSError: there is not so much, or no descriptor for it.
    """

    METHODS: ClassVar = frozenset({"place"})
    SEALED: ClassVar = frozenset[str]()

    def __init__(self, size_bytes: int) -> None:
        self._fd = memory_file("ropewalk-memory")
        os.ftruncate(self._fd, max(1, size_bytes))

    def place(self, waiter: Waiter) -> list[CallOutcome]:
        """Tell where every process of this user on this host finds it."""
        return [CallOutcome(waiter, f"/proc/{os.getpid()}/fd/{self._fd}")]

    def close(self) -> None:
        """Nobody maps it any more from now on; it goes with its last mapping."""
        os.close(self._fd)

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """No call waits here."""
        return []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Nothing is lent here."""
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Nobody owns any of it."""
        return []
