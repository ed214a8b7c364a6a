"""Decides whom to ask about calls that wait, and which call to end when they wait for each other. Pure.

    a process: calls have waited here for a while for calls that wait for others ─▶ look
    look:       ask that process, then those that its calls wait for, and so on ─▶ a circle?
                  no ─▶ nothing: somebody works, and the others wait for that
                  yes ─▶ end the call that came last

A process says so again while it is so, which begins another look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.calls.waits import LaneWaits
from ropewalk.program.wait_graph import Circle, addresses, find_circle

#: A look that has not come to its end in this time is given up.
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class QueryWaits:
    """Ask a process which of its calls wait; told by `answered`."""

    address: str
    number: int


@dataclass(frozen=True, slots=True)
class BreakCircle:
    """End the call of a circle that came last."""

    circle: Circle


class WaitWatch:
    """One look at a time."""

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
        """A process says that calls are held up there by calls that wait for others."""
        if self.is_looking and now < self._begun + ANSWER_S:
            return []
        self._number += 1
        self._begun = now
        self._missing, self._reports = {address}, {}
        return [QueryWaits(address, self._number)]

    def answered(self, address: str, number: int, lanes: Sequence[LaneWaits]) -> list[QueryWaits | BreakCircle]:
        """A process has said which of its calls wait."""
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
        """There is no such process (any more)."""
        if address in self._missing:
            self._missing.clear()  # if there is a circle without it, somebody will say so again


__all__ = ["ANSWER_S", "BreakCircle", "QueryWaits", "WaitWatch"]
