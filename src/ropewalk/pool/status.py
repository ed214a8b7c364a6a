"""The state of a pool, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.html_table import StateCell, html_box, html_failure, html_headline, html_table, html_text
from ropewalk.quantities import shown_duration, shown_size
from ropewalk.supervision.failure import DeathRecord
from ropewalk.text_table import text_table
from ropewalk.transport.kernel import is_running

if TYPE_CHECKING:
    from ropewalk.processes.session import Session

_SHOWN_DEATHS = 5


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of one worker."""

    name: str
    pid: int
    """The process id; 0 until the worker has started."""
    host: str
    state: str
    """"starting", "idle", "running" or "stopping"."""
    task: int | None
    """Index of the task that the worker runs or is about to begin; None if it holds none."""
    num_done: int
    memory_bytes: int
    """Resident memory, in bytes, as measured about once a second."""
    cpu_s: float
    doing: str = ""
    """The function of that task, with its index in a map."""
    doing_s: float = 0.0
    """Seconds since the worker began it, as far as the launcher knows."""
    expected_s: float | None = None
    """Seconds that tasks of that function take on average; None if that is not known."""
    others_end: bool = False
    """Whether a task of that function has ended elsewhere since it began."""
    num_waiting: int = 0
    """Number of tasks that were sent ahead and wait for that one."""
    uptime_s: float = 0.0
    """Seconds since the worker has connected."""
    silent_s: float = 0.0
    """Seconds since its use of memory was measured."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The state of a pool at one moment."""

    name: str
    state: str
    workers: tuple[WorkerStatus, ...]
    queued: int
    """Number of tasks that have not begun; some of them may be at a worker already, after the one that it runs."""
    running: int
    """Number of tasks that workers run now, or are about to begin: at most one for each worker."""
    done: int
    """Number of tasks that ended with a value or an exception of their own."""
    failed: int
    """Number of tasks that ended without either: poisoned, timed out, or lost."""
    retried: int
    """How many times a task was started again after its worker died."""
    num_deaths: int
    deaths: tuple[DeathRecord, ...]
    """Unplanned deaths of workers, oldest first; at most the last thousand."""
    events: tuple[str, ...]
    """Changes of hosts, in words."""
    ways: tuple[str, ...] = ()
    """Hosts that reach each other only through a relay."""
    dropped: int = 0
    """Number of tasks that were cancelled, or still there when the pool was terminated."""

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
        return "\n".join([head, *workers, *ways, *(f"  {death.describe()}" for death in self.deaths[-_SHOWN_DEATHS:])])

    def _repr_html_(self) -> str:
        counts = {name: getattr(self, name) for name in ("queued", "running", "done", "failed", "retried")}
        facts = [(name, f"{number:,}") for name, number in counts.items()]
        rows = [
            (w.name, StateCell(w.state), "" if w.task is None else f"{w.task:,}", f"{w.num_done:,}",
             shown_size(w.memory_bytes) if w.memory_bytes else "", shown_duration(round(w.cpu_s, 1)), w.host,
             str(w.pid or ""))
            for w in self.workers
        ]  # fmt: skip
        head = ("worker", "state", "task", "done", "memory", "cpu", "host", "pid")
        deaths = [html_failure(death.describe()) for death in self.deaths[-_SHOWN_DEATHS:]]
        more = [html_failure(f"{self.num_deaths} deaths, the last of them:")] if self.num_deaths > len(deaths) else []
        headline = html_headline(self.name, self.state, facts)
        ways = [f"<div>{html_text(way)}</div>" for way in self.ways]
        return html_box(headline, html_table(head, rows, right={2, 3, 4, 5, 7}), *ways, *more, *deaths)


class WorkerHandle:
    """A worker as multiprocessing's users know it: with a `pid`, and whether it is alive."""

    def __init__(self, session: Session, id: str) -> None:
        self.name = id
        self.pid = session.processes.pid_of(id)
        self._session = session

    def is_alive(self) -> bool:
        """Return whether the process is running."""
        if self._session.passport:  # the worker may be on another host, where this pid means another process
            return self._session.processes.pid_of(self.name) > 0
        return is_running(self.pid)
