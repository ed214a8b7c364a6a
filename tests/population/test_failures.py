"""Policies for evaluations without a fitness."""

from __future__ import annotations

import pytest

from ropewalk.errors import EvaluationFailed
from ropewalk.population.failures import FailurePolicy, MissingFitness
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket

NAN = float("nan")


def told(*outcomes: Outcome) -> list[tuple[Ticket, Outcome]]:
    return [(Ticket(3, at), outcome) for at, outcome in enumerate(outcomes)]


def test_the_worst_of_those_told_together_stands_in_for_a_fitness() -> None:
    missing = MissingFitness(FailurePolicy("worst", nan="worst"))
    missing.applied(told(Outcome(-100.0)))
    found, num_failed = missing.applied(
        told(Outcome(2.0), Outcome(NAN, failure="it died"), Outcome(-1.0), Outcome(NAN))
    )
    assert [outcome and outcome.fitness for outcome in found] == [2.0, -1.0, -1.0, -1.0] and num_failed == 2
    assert found[1] and found[1].failure == "it died" and found[3] and found[3].failure == "NaN"


def test_one_that_is_told_alone_gets_the_worst_so_far() -> None:
    missing = MissingFitness(FailurePolicy("worst", nan="worst"))
    assert missing.applied(told(Outcome(NAN))) == ([None], 1)  # nothing is known yet
    missing.applied(told(Outcome(5.0)))
    missing.applied(told(Outcome(7.0)))
    found, _ = missing.applied(told(Outcome(NAN)))
    assert found[0] and found[0].fitness == 5.0


def test_failures_and_nan_have_policies_of_their_own() -> None:
    missing = MissingFitness(FailurePolicy(failures="drop"))
    assert missing.applied(told(Outcome(NAN, failure="no"), Outcome(1.0))) == ([None, Outcome(1.0)], 1)
    with pytest.raises(EvaluationFailed, match="candidate 1 of ask 3 is NaN"):
        missing.applied(told(Outcome(1.0), Outcome(NAN)))


def test_infinities_are_a_fitness() -> None:
    outcomes = [Outcome(float("inf")), Outcome(float("-inf"))]
    assert MissingFitness(FailurePolicy()).applied(told(*outcomes)) == (outcomes, 0)


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"nan must be one of 'raise', 'worst', 'drop', not 'skip'"):
        FailurePolicy("raise", "skip")  # type: ignore[arg-type]
