"""Policies for evaluations that failed, or whose fitness is NaN. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from ropewalk.errors import EvaluationFailed
from ropewalk.near_names import check_choice
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket

FailureAction = Literal["raise", "worst", "drop"]


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The policies for evaluations without a fitness.

    "raise" ends the run; "worst" tells the worst fitness among those told together (or so far, if it is told alone);
    "drop" does not tell the evaluation at all.

    Example:
        >>> FailurePolicy(nan="worst")
        FailurePolicy(failures='raise', nan='worst')

    Args:
        failures: the policy for evaluations that raised, or that the pool gave up (`TaskPoisoned`, `TaskTimeout`).
        nan: the policy for evaluations that returned NaN.

    Raises:
        ValueError: there is no such policy.
    """

    failures: FailureAction = "raise"
    nan: FailureAction = "raise"

    def __post_init__(self) -> None:
        check_choice("failures", self.failures, get_args(FailureAction))
        check_choice("nan", self.nan, get_args(FailureAction))


class MissingFitness:
    """Decides what an algorithm is told in place of a missing fitness.

    Args:
        policy: what happens to evaluations without a fitness.

    Attributes:
        policy: the policy.
        worst: the worst fitness so far; None before the first.
    """

    def __init__(self, policy: FailurePolicy) -> None:
        self.policy = policy
        self.worst: float | None = None

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
            policy = self.policy.failures if outcome.failure else self.policy.nan
            if policy == "raise":
                raise EvaluationFailed(
                    f"the fitness of candidate {ticket.position} of ask {ticket.ask} is NaN; find out why (its seed "
                    'makes it repeatable), or choose evaluate(..., failures=FailurePolicy(nan="worst")) or nan="drop"'
                )
            if policy == "drop" or worst is None:
                found.append(None)
            else:
                found.append(replace(outcome, fitness=worst, failure=outcome.failure or "NaN"))
        return found, num_failed


__all__ = ["FailureAction", "FailurePolicy", "MissingFitness"]
