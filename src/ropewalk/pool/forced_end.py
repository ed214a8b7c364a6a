"""The end of a pool's workers by signals: `Shutdown` decides, this sends them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Sequence

from ropewalk.processes.session import Session
from ropewalk.supervision.shutdown import Graces, Instruction, Rung, Shutdown, Terminate

_TERMINATE_S = 1.0
"""Seconds from SIGTERM to SIGKILL for a worker, if nothing else was said."""


class ForcedEnd:
    """Sends SIGTERM to processes, and SIGKILL to those that have not ended after a time.

    Args:
        session: the session of the processes.
        ids: the ids of the processes; those that have ended disappear from it.
        lock: held by the caller, and taken again on the loop, when the time is over.
        grace_s: seconds from SIGTERM to SIGKILL; None: 1 second.
    """

    def __init__(self, session: Session, ids: Collection[str], lock: threading.Lock, grace_s: float | None) -> None:
        self._session = session
        self._ids = ids
        self._lock = lock
        self._shutdown = Shutdown(ids, Graces(terminate_s=_TERMINATE_S if grace_s is None else grace_s))
        self._carry_out(self._shutdown.begin(time.monotonic(), at=Rung.TERMINATE))

    def exited(self, id: str) -> None:
        """Note that a process has ended."""
        self._shutdown.exited(id)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            number = signal.SIGTERM if isinstance(instruction, Terminate) else signal.SIGKILL
            for id in instruction.names:
                self._session.processes.signal(id, number)
        if self._shutdown.next_due is not None:
            loop, delay_s = self._session.loop, max(0.0, self._shutdown.next_due - time.monotonic())
            loop.call_soon(lambda: loop.call_later(delay_s, self._go_on))

    def _go_on(self) -> None:
        with self._lock:
            if self._ids:
                self._carry_out(self._shutdown.tick(time.monotonic()))
