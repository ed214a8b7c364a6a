"""The threads of an exchange: one begins every collective, one completes them, both in the order of submission.

    submit(job) ─▶ [job, job, …] ─ communication thread ─ begins ─▶ [rest, rest, …] ─ completion thread ─ waits, copies

One thread begins all collectives of a process, so that their order is the same on every member, whichever thread found
a bucket full. Another thread waits, so that several buckets are in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], Callable[[], None] | None]
"""Begins a transfer; returns the function that completes it, or None if it is complete already."""


class CommunicationThread:
    """Runs jobs one after the other; they must not raise. `close` ends both threads."""

    def __init__(self, name: str = "exchange") -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._rests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Daemon threads, because a member whose peers hang must still be able to exit.
        self._threads = [
            threading.Thread(target=self._begin, name=f"{name}-communication", daemon=True),
            threading.Thread(target=self._complete, name=f"{name}-completion", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Run `job` on the communication thread, and what it returns on the completion thread."""
        self._jobs.put(job)

    def drain(self) -> None:
        """Wait until everything that was submitted is complete; must not be called from one of the two threads."""
        idle = threading.Event()
        self._jobs.put(lambda: idle.set)
        idle.wait()

    def close(self) -> None:
        """Complete the submitted jobs and end the threads; may be called twice."""
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        while (job := self._jobs.get()) is not None:
            rest = job()
            if rest is not None:
                self._rests.put(rest)
        self._rests.put(None)

    def _complete(self) -> None:
        while (rest := self._rests.get()) is not None:
            rest()
