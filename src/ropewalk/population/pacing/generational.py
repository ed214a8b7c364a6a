"""Generations: ask for a population, wait for it, tell it, and repeat.

Ask ▕ ■ ■ ■ ■ ■ ■ ■ ■ ■ □ ▏ share has ended ── grace ──▶ CancelEvaluations the rest, or carry it over; Tell ▕ Ask ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Instruction, Tell, Ticket, UnderWay, rows
from ropewalk.population.pacing.stragglers import StragglerPolicy

_LARGEST_DENOMINATOR = 1_000_000
"""A share is taken for the fraction that was meant: 0.07 of 100 is 7, and as a float it is a little more."""


class Generational(UnderWay):
    """The pacing of generations.

    Args:
        population: returns the number of candidates to ask for now.
        stragglers: the policy for the last evaluations.
    """

    def __init__(self, population: Callable[[], int], stragglers: StragglerPolicy) -> None:
        super().__init__()
        self._population = population
        self._stragglers = stragglers
        self._wait_for = 0
        """Number of evaluations of the generation that must end before the rest may be given up."""
        self._began: float | None = 0.0
        """Start time of the generation; None after the run was resumed, until it is known."""
        self._enough_at: float | None = None
        self._newest = -1
        """The number of the latest ask, and the number of its evaluations that have ended."""
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
        share = Fraction(float(self._stragglers.after)).limit_denominator(_LARGEST_DENOMINATOR)
        self._wait_for = math.ceil(len(tickets) * share)

    def ended(self, ticket: Ticket, now: float) -> None:
        if ticket in self._running:
            super().ended(ticket, now)
            self._num_of_newest += ticket.ask == self._newest
            # Carried evaluations do not count, or their number would grow without limit. If nothing else was asked, one
            # of them is waited for.
            if self._enough_at is None and self._num_of_newest >= self._wait_for:
                self._enough_at = now

    def state_dict(self) -> dict[str, Any]:
        asked = [self._newest, self._wait_for] if self._asked else None
        return {"under_way": rows(self.under_way), "asked": asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluate_again(state["under_way"])
        self._asked = state["asked"] is not None
        if self._asked:  # in the middle of a generation, which restarts when the run is resumed
            self._newest, self._wait_for = state["asked"]
            self._num_of_newest = 0
            self._began = None
