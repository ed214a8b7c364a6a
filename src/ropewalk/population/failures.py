"""Policies for evaluations that failed, or whose fitness is NaN. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from ropewalk.errors import EvaluationFailed
from ropewalk.near_names import check_choice
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket

Policy = Literal["raise", "worst", "drop"]


class FailurePolicy:
    """Decides what an algorithm is told in place of a missing fitness.

    Args:
        failures: the policy for evaluations that raised, or whose task the pool gave up.
        nan: the policy for evaluations that returned NaN.

    "raise" ends the run; "worst" tells the worst fitness among those told together (or so far, if it is told alone);
    "drop" does not tell the evaluation at all.
    """

    def __init__(self, failures: Policy, nan: Policy) -> None:
        for name, policy in (("failures", failures), ("nan", nan)):
            check_choice(name, policy, get_args(Policy))
        self.failures: Policy = failures
        self.nan: Policy = nan
        self.worst: float | None = None
        """The worst fitness so far."""

    def applied(self, told: list[tuple[Ticket, Outcome]]) -> tuple[list[Outcome | None], int]:
        """Apply the policies to outcomes.

        Args:
            told: the tickets and outcomes that are told together.

        Returns:
            The outcome to tell for each ticket, None for a dropped one; and the number of outcomes without a fitness.

        Raises:
            EvaluationFailed: a fitness is NaN, and the policy is "raise".
        """
        known = [outcome.fitness for _, outcome in told if outcome.has_fitness]
        if known:
            worst_here = min(known)
            self.worst = worst_here if self.worst is None else min(self.worst, worst_here)
        worst = min(known) if known else self.worst
        found: list[Outcome | None] = []
        num_failed = 0
        for ticket, outcome in told:
            if outcome.has_fitness:
                found.append(outcome)
                continue
            num_failed += 1
            policy = self.failures if outcome.failure else self.nan
            if policy == "raise":
                raise EvaluationFailed(
                    f"the fitness of candidate {ticket.position} of ask {ticket.ask} is NaN; find out why (its seed "
                    'makes it repeatable), or choose evaluate(..., nan="worst") or nan="drop"'
                )
            if policy == "drop" or worst is None:
                found.append(None)
            else:
                found.append(replace(outcome, fitness=worst, failure=outcome.failure or "NaN"))
        return found, num_failed
