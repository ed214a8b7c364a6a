"""Decides which processes to ask about waiting calls, and which call to end when calls wait for each other. Pure.

    a process: calls have waited here for a while for calls that wait for others ─▶ look
    look:       ask that process, then those that its calls wait for, and so on ─▶ a cycle?
                  no ─▶ nothing: a call is making progress, and the others wait for it
                  yes ─▶ end the call that came last

A process repeats its report while calls are held up, which begins another look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.calls.waits import LaneWaits
from ropewalk.program.wait_graph import Circle, addresses, find_circle

ANSWER_S = 2.0
"""Timeout in seconds after which a look is abandoned."""


@dataclass(frozen=True, slots=True)
class QueryWaits:
    """Ask a process which of its calls wait; `answered` takes the reply."""

    address: str
    number: int


@dataclass(frozen=True, slots=True)
class BreakCircle:
    """End the last call of a cycle to arrive."""

    circle: Circle


class WaitWatch:
    """Runs one look at a time."""

    def __init__(self) -> None:
        self._number = 0
        self._begun = 0.0
        self._missing: set[str] = set()
        self._reports: dict[str, Sequence[LaneWaits]] = {}

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way."""
        return bool(self._missing)

    def held_up(self, address: str, now: float) -> list[QueryWaits]:
        """A process reports that calls are held up there by calls that wait for others."""
        if self.is_looking and now < self._begun + ANSWER_S:
            return []
        self._number += 1
        self._begun = now
        self._missing, self._reports = {address}, {}
        return [QueryWaits(address, self._number)]

    def answered(self, address: str, number: int, lanes: Sequence[LaneWaits]) -> list[QueryWaits | BreakCircle]:
        """A process has reported its waiting calls."""
        if number != self._number or address not in self._missing:
            return []
        self._missing.discard(address)
        self._reports[address] = lanes
        new = addresses(lanes) - self._reports.keys() - self._missing
        self._missing |= new
        if self._missing:
            return [QueryWaits(each, self._number) for each in sorted(new)]
        circle = find_circle(self._reports)
        return [BreakCircle(circle)] if circle else []

    def gone(self, address: str) -> None:
        """A process is gone."""
        if address in self._missing:
            self._missing.clear()  # if there is a cycle without it, a process will report it again


__all__ = ["ANSWER_S", "BreakCircle", "QueryWaits", "WaitWatch"]
