"""The last events of something that runs."""

from __future__ import annotations

import time
from collections import deque

from ropewalk.control.view import EventView

_MOST_EVENTS = 1000


class EventLog:
    """Keeps the last events; any thread may call any method.

    Args:
        most: number of events that are kept.
    """

    def __init__(self, most: int = _MOST_EVENTS) -> None:
        self._events: deque[EventView] = deque(maxlen=most)

    def add(self, text: str, kind: str = "", process: str = "") -> None:
        """Add an event of this moment; the arguments are as in `EventView`."""
        self._events.append(EventView(at=time.time(), kind=kind, text=text, process=process))

    def views(self) -> tuple[EventView, ...]:
        """The events, oldest first."""
        return tuple(self._events.copy())
