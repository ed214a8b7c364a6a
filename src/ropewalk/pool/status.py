"""What a pool is doing, as data and as a table."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.quantities import shown_size
from ropewalk.supervision.failure import DeathRecord
from ropewalk.text_table import text_table

if TYPE_CHECKING:
    from ropewalk.processes.session import Session


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker."""

    name: str
    pid: int
    """0 until it has started."""
    host: str
    state: str
    """starting, idle, running or stopping."""
    task: int | None
    """Index of the task it is in or about to begin, if it holds any."""
    num_done: int
    memory_bytes: int
    """Resident memory when it was last looked at, about once a second."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool at one moment."""

    name: str
    state: str
    workers: tuple[WorkerStatus, ...]
    queued: int
    """Tasks that no worker has yet."""
    running: int
    """Tasks that a worker has: those it is in, and those sent ahead."""
    done: int
    """Tasks that have a result, an exception among them."""
    failed: int
    """Tasks that ended without one: poisoned, out of time, or lost."""
    retried: int
    """Times a task was started again after it killed its worker."""
    num_deaths: int
    deaths: tuple[DeathRecord, ...]
    """Unplanned deaths of workers, oldest first (the last thousand)."""
    events: tuple[str, ...]
    """What happened to hosts."""
    ways: tuple[str, ...] = ()
    """Hosts that reach each other only through another one."""

    def __str__(self) -> str:
        head = (
            f"{self.name} {self.state}: {len(self.workers)} workers, {self.queued} queued, {self.running} running, "
            f"{self.done} done, {self.failed} failed, {self.retried} retried, {self.num_deaths} deaths"
        )
        rows = [
            (w.name, f"pid {w.pid}", w.host, w.state, f"{w.num_done} done", shown_size(w.memory_bytes))
            for w in self.workers
        ]
        workers = [f"  {line}" for line in text_table(rows, right={4, 5})]
        ways = [f"  {way}" for way in self.ways]
        return "\n".join([head, *workers, *ways, *(f"  {death.describe()}" for death in self.deaths[-5:])])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class WorkerHandle:
    """A worker as multiprocessing's users know it: a pid, and whether it is alive."""

    def __init__(self, session: Session, id: str) -> None:
        self.name = id
        self.pid = session.processes.pid_of(id)
        self._session = session

    def is_alive(self) -> bool:
        """Whether the process is there."""
        if self._session.passport:  # it may be on another host, whose numbers mean nothing here
            return self._session.processes.pid_of(self.name) > 0
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return self.pid > 0
