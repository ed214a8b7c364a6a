"""Generations: ask for a population, wait for it, tell it, and again.

Ask ▕ ■ ■ ■ ■ ■ ■ ■ ■ ■ □ ▏ share is there ── patience ──▶ CancelEvaluations the rest, or carry it over; Tell ▕ Ask ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Instruction, Tell, Ticket, UnderWay, rows
from ropewalk.population.pacing.stragglers import StragglerPolicy


class Generational(UnderWay):
    """The pacing of generations.

    Args:
        population: says for how many candidates to ask now.
        stragglers: what happens to the last ones.
    """

    def __init__(self, population: Callable[[], int], stragglers: StragglerPolicy) -> None:
        super().__init__()
        self._population = population
        self._stragglers = stragglers
        self._wait_for = 0
        """Of the generation: how many evaluations have to end before the rest may be left."""
        self._began: float | None = 0.0
        """None until it is known, after a resumption."""
        self._enough_at: float | None = None
        self._newest = -1
        """The number of the ask, and how many of it have ended."""
        self._num_of_newest = 0
        self._asked = False

    @property
    def due(self) -> float | None:
        if self._enough_at is None or self._began is None or self._stragglers.action == "wait":
            return None
        return self._enough_at + self._stragglers.grace * (self._enough_at - self._began)

    def next(self, now: float, num_workers: int) -> Instruction | None:
        if self._began is None:
            self._began = now
        if not self._asked:
            return Ask(self._population())
        if self._running:
            due = self.due
            if due is None or now < due:
                return None
            if self._stragglers.action == "drop":
                dropped = tuple(sorted(self._running))
                self._running.clear()
                return CancelEvaluations(dropped)
        told = tuple(sorted(self._ended))
        self._ended = {}
        self._asked = False
        self._enough_at = None
        return Tell(told)

    def asked(self, tickets: Sequence[Ticket], now: float) -> None:
        self._asked = True
        self._began = now
        super().asked(tickets, now)
        self._newest = tickets[0].ask if tickets else -1
        self._num_of_newest = 0
        self._wait_for = -(-len(tickets) * self._stragglers.after // 1)  # rounded up
        self._look(now)

    def ended(self, ticket: Ticket, now: float) -> None:
        if ticket in self._running:
            super().ended(ticket, now)
            self._num_of_newest += ticket.ask == self._newest
            self._look(now)

    def _look(self, now: float) -> None:
        """Carried ones do not count, or ever more would be carried; where nothing else is asked, one is waited for."""
        has_something = bool(self._ended) or not self._running
        if self._enough_at is None and has_something and self._num_of_newest >= self._wait_for:
            self._enough_at = now

    def state_dict(self) -> dict[str, Any]:
        asked = [self._newest, int(self._wait_for)] if self._asked else None
        return {"under_way": rows(self.under_way), "asked": asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluate_again(state["under_way"])
        self._asked = state["asked"] is not None
        if self._asked:  # in the middle of a generation, which begins anew when it goes on
            self._newest, self._wait_for = state["asked"]
            self._num_of_newest = 0
            self._began = None
