"""What has happened to the workers of a pool: deaths with causes, tasks that start again, replacements, its size."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ropewalk.control.event_log import EventLog
from ropewalk.control.loop_target import in_order
from ropewalk.control.view import EventView
from ropewalk.quantities import counted
from ropewalk.supervision.failure import DeathRecord

_KEPT_DEATHS = 1000
_KEPT_EVENTS = 100
_KEPT_REPLACEMENTS = 100


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """The unplanned death of a worker."""

    record: DeathRecord
    retried: str
    """The task that was running, if it starts again; else empty."""
    is_told: bool = False
    """Whether the error of the task that was running tells of it."""


class PoolHistory:
    """The last deaths and events of one pool, for `status` and for the page."""

    def __init__(self) -> None:
        self.deaths: deque[DeathRecord] = deque(maxlen=_KEPT_DEATHS)
        self.num_deaths = 0
        self.events: deque[str] = deque(maxlen=_KEPT_EVENTS)
        """Changes of hosts and of the pool's size, in words."""
        self._log = EventLog()
        """The same, with their times, and with deaths and tasks that start again."""
        self._replacements = EventLog(_KEPT_REPLACEMENTS)
        """Apart, since with a small maxtasksperchild there are many, which would push out the deaths."""

    def note(self, text: str, kind: str = "") -> None:
        """Note an event; the arguments are as in `EventView`."""
        self.events.append(text)
        self._log.add(text, kind)

    def died(self, worker: str, death: WorkerDeath) -> None:
        """Note the death of a worker, by its name."""
        self.deaths.append(death.record)
        self.num_deaths += 1
        self._log.add(death.record.describe(), "death", worker)
        if death.retried:
            self._log.add(f"{death.retried} starts again", "retry", worker)

    def replaced(self, worker: str, num_chunks: int) -> None:
        """Note that a worker ends as planned, and another takes its place.

        Args:
            worker: its name.
            num_chunks: of tasks that it has run, as many as `maxtasksperchild` allows.
        """
        text = f"{worker} has run its {counted(num_chunks, 'chunk')} of tasks (maxtasksperchild), and is replaced"
        self._replacements.add(text, "replacement", worker)

    def views(self) -> tuple[EventView, ...]:
        """All kinds of events with their times, oldest first."""
        return in_order(self._log.views(), self._replacements.views())
