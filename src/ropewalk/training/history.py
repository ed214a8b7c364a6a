"""`TrainingHistory`: what happened in a training, with times: events, snapshots, and the time that was useful.

Goodput is the share of the time since the start in which steps were under way that count. A step counts once, when it
is first done: starting, recovering from a death, and repeating steps after it do not count, and neither does the time
in which no step was admitted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ropewalk.control.view import EventView
from ropewalk.training.snapshot_history import SnapshotHistory

_NUM_EVENTS = 1000


class TrainingHistory:
    """The history of one training. One thread writes, and any thread reads.

    Args:
        now: returns Unix time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now: Callable[[], float] = now
        self.began: float = now()
        """Unix time in seconds."""
        self.ended: float | None = None
        self.snapshots: SnapshotHistory = SnapshotHistory()
        self.num_deaths = 0
        self.num_repeated = 0
        """Steps that were done again after a death."""
        self.useful_s = 0.0
        """Seconds in which steps that count were under way."""
        self.last_failure = ""
        self._events: deque[EventView] = deque(maxlen=_NUM_EVENTS)
        self._done_s = 0.0

    @property
    def events(self) -> tuple[EventView, ...]:
        """The last 1000 events, oldest first."""
        return tuple(self._events)

    def note(self, kind: str, text: str, process: str = "") -> None:
        """Record an event; from any thread.

        Args:
            kind: as in `EventView`.
            text: what happened, with its cause.
            process: the name of the process that it is about.
        """
        self._events.append(EventView(at=self.now(), kind=kind, text=text, process=process))

    def death(self, text: str, process: str = "") -> None:
        """Record the death of a process."""
        self.num_deaths += 1
        self.last_failure = text
        self.note("death", text, process)

    def failed(self, error: BaseException) -> None:
        """Record that the training failed."""
        self.last_failure = f"{type(error).__name__}: {error}"
        self.note("", self.last_failure)

    def step_done(self, sent_s: float, now_s: float, *, is_repeated: bool) -> None:
        """Record that a step is done.

        Args:
            sent_s: when it was given to the workers, or given again after a death.
            now_s: now, by the same clock.
            is_repeated: whether it had been done before.
        """
        if is_repeated:
            self.num_repeated += 1
        else:
            self.useful_s += now_s - max(sent_s, self._done_s)
        self._done_s = now_s

    def goodput(self) -> float | None:
        """Return the share of the time so far in which steps that count were under way; None before the first."""
        elapsed_s = (self.now() if self.ended is None else self.ended) - self.began
        return min(1.0, self.useful_s / elapsed_s) if self.useful_s and elapsed_s > 0 else None
