"""Warnings of deaths: one line for each, and one line for many that follow each other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ropewalk.escaping import escaped
from ropewalk.quantities import counted
from ropewalk.supervision.repeats import Repeats
from ropewalk.transport.loop import Loop


class DeathWarnings:
    """Logs the deaths of processes by group; on the loop.

    Args:
        logger: gets the warnings.
        loop: makes the later ones.
        when_shown: makes a call after what the processes have printed is shown, which often says why they died.
    """

    def __init__(self, logger: logging.Logger, loop: Loop, when_shown: Callable[[Callable[[], object]], None]) -> None:
        self._logger = logger
        self._loop = loop
        self._when_shown = when_shown
        self._repeats = Repeats()
        self._planned: set[str] = set()
        """Groups of which deaths were not told one by one."""

    def warn(self, group: str, text: str, now: float | None = None) -> None:
        """Warn of a death.

        Args:
            group: name of the processes that do the same.
            text: which process died and why, and what follows.
            now: monotonic time in seconds; by default the present.
        """
        now = time.monotonic() if now is None else now
        if self._repeats.admits(group, text, now):
            self._say(text)
        elif group not in self._planned:
            self._planned.add(group)
            self._loop.call_later(max(0.0, self._repeats.due(group) - now), lambda: self._sum_up(group))

    def close(self) -> None:
        """Tell of the deaths that were not told one by one; from any thread, may be called twice."""
        for group in list(self._planned):
            self._sum_up(group)

    def _sum_up(self, group: str) -> None:
        if group in self._planned:
            self._planned.discard(group)
            num, last = self._repeats.left_out(group)
            self._say(
                f"{counted(num, 'more death')} of {group} within {self._repeats.period_s:g} s; the last one: {last}"
            )

    def _say(self, text: str) -> None:
        self._when_shown(lambda: self._logger.warning("%s", escaped(text)))
