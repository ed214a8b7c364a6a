"""Steady state: as soon as an evaluation ends, the algorithm is told, and asked for another candidate.

No worker waits for the slowest evaluation. The result of the run depends on the order of arrival, which is logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.population.pacing.pacing import Ask, Instruction, Tell, Ticket, UnderWay, rows


class Steady(UnderWay):
    """The pacing of steady state.

    Args:
        ahead: number of submitted candidates per worker, 1 or more.
    """

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self._ahead = ahead
        self._wanted = 0
        self._has_no_more = False
        """Whether the last ask returned fewer candidates than requested, so that the algorithm has to be told first."""

    def next(self, now: float, num_workers: int) -> Instruction | None:
        if self._ended:
            self._has_no_more = False
            first = next(iter(self._ended))
            del self._ended[first]
            return Tell((first,))
        missing = max(1, round(self._ahead * num_workers)) - len(self._running)
        if missing > 0 and not self._has_no_more:
            self._wanted = missing
            return Ask(missing)
        return None

    def asked(self, tickets: Sequence[Ticket], now: float) -> None:
        self._has_no_more = len(tickets) < self._wanted
        super().asked(tickets, now)

    def state_dict(self) -> dict[str, Any]:
        return {"under_way": rows(self.under_way), "has_no_more": self._has_no_more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluate_again(state["under_way"])
        self._has_no_more = bool(state["has_no_more"])
