"""`LoopTarget`: a target whose work is a loop in the thread that calls it, such as `evaluate` or a search."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable
from typing import Any

from ropewalk.control.target import ControlTarget, new_id
from ropewalk.control.view import EventView, Kind, View

_MOST_EVENTS = 1000


class LoopTarget(ControlTarget):
    """Notes what happens in the loop, and how it ends.

    Args:
        kind: as in `View`.

    Attributes:
        kind: see `ControlTarget`.
        id: see `ControlTarget`.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.id: str = new_id()
        self._state = "running"
        self._started = time.time()
        self._events: deque[EventView] = deque(maxlen=_MOST_EVENTS)
        self._last_failure = ""
        self._run = ""
        """Id of its run in the store; "" if it is not tracked."""
        self._over = threading.Event()
        """Set when the loop has ended."""

    @contextlib.contextmanager
    def noted(self) -> Generator[None]:
        """Run the loop in the block; notes how it ends."""
        try:
            yield
        except BaseException as error:
            self._state = "failed" if isinstance(error, Exception) else "stopped"
            if self._state == "failed":
                self._last_failure = f"{type(error).__name__}: {error}"
            raise
        else:
            self._state = "completed"
        finally:
            self._over.set()

    def _seen(
        self,
        *,
        facts: dict[str, float | int | str],
        progress: float | None,
        left_s: float | None,
        panels: dict[str, dict[str, Any]],
        offers: Iterable[str],
        actions: tuple[str, ...],
    ) -> View:
        """Return the view of now; arguments as in `View`."""
        return View(
            kind=self.kind,
            name=self.name,
            id=self.id,
            pid=os.getpid(),
            state=self._state,
            started=self._started,
            at=time.time(),
            run=self._run,
            progress=progress,
            left_s=left_s,
            facts=facts,
            last_failure=self._last_failure,
            events=tuple(self._events),
            panels=panels,
            offers=tuple(offers),
            actions=actions,
        )

    def happened(self, kind: str, text: str) -> None:
        """Note an event.

        Args:
            kind: as in `EventView`.
            text: what happened.
        """
        self._events.append(EventView(at=time.time(), kind=kind, text=text))


def in_order(*parts: Iterable[EventView]) -> tuple[EventView, ...]:
    """Return the events of several parts in the order of their times, the last thousand."""
    return tuple(sorted(itertools.chain(*parts), key=lambda event: event.at)[-_MOST_EVENTS:])
