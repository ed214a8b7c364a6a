"""The conformance suite of schedulers finds each mistake that a scheduler may have."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Callable

import pytest

from ropewalk.search.schedulers import FINISHED, GO_ON, STOP, WAIT, PromoteTrial, Scheduler, StartTrial, Verdict, Wait
from ropewalk.testing.scheduler_conformance import SchedulerConformance


class Once(Scheduler):
    """Each trial trains for one step, pauses, and is promoted to the end."""

    needs_checkpoints = True

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.under_way: set[int] = set()

    def next(self) -> StartTrial | PromoteTrial | Wait:
        if self.waiting:
            return PromoteTrial(self.waiting[0], None)
        if not self.is_exhausted:
            return StartTrial(1)
        return WAIT if self.under_way else FINISHED

    def started(self, trial: int, start: StartTrial) -> None:
        self.under_way.add(trial)

    def promoted(self, promote: PromoteTrial) -> None:
        self.waiting.remove(promote.trial)

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        return GO_ON

    def paused(self, trial: int, step: float) -> None:
        self.under_way.discard(trial)
        self.waiting.append(trial)

    def ended(self, trial: int) -> None:
        self.under_way.discard(trial)
        self.waiting = [other for other in self.waiting if other != trial]

    def failed(self, trial: int) -> None:
        self.ended(trial)


class PromotesTheFailed(Once):
    def failed(self, trial: int) -> None:
        self.paused(trial, 0)


class PromotesTwice(Once):
    def promoted(self, promote: PromoteTrial) -> None:
        """It does not take the trial off its list."""


class WaitsForEver(Once):
    def failed(self, trial: int) -> None:
        """It goes on waiting for this trial."""


class StartsWithoutEnd(Once):
    def exhausted(self) -> None:
        """It does not listen."""


class StartsAfterTheEnd(Once):
    def next(self) -> StartTrial | PromoteTrial | Wait:
        answer = super().next()
        return StartTrial(1) if answer is WAIT else answer


class ChangesWhenAsked(Once):
    def next(self) -> StartTrial | PromoteTrial | Wait:
        self.waiting = self.waiting[1:] + self.waiting[:1]
        return super().next()


class KeepsBudgets(Once):
    def next(self) -> StartTrial | PromoteTrial | Wait:
        answer = super().next()
        return PromoteTrial(answer.trial, 1) if isinstance(answer, PromoteTrial) else answer


class NeedsCheckpointsSilently(Once):
    needs_checkpoints = False


class DependsOnMore(Once):
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.number = next(self.numbers)

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        return STOP if self.number % 2 else GO_ON


class AnswersAnything(Once):
    def reported(self, trial: int, step: float, score: float) -> Verdict:
        return True  # pyright: ignore[reportReturnType]


class AnswersNothing(Once):
    def reported(self, trial: int, step: float, score: float) -> Verdict:  # pyright: ignore[reportReturnType]
        """It has forgotten to answer."""


class NeverFinishes(Once):
    def next(self) -> StartTrial | PromoteTrial | Wait:
        answer = super().next()
        return WAIT if answer is FINISHED else answer


def suite_of(make: Callable[[], Scheduler]) -> unittest.TestResult:
    class Suite(SchedulerConformance):
        num_orders = 6

        def make_scheduler(self) -> Scheduler:
            return make()

    result = unittest.TestResult()
    Suite.all_tests().run(result)
    return result


def test_a_scheduler_that_keeps_the_laws_passes() -> None:
    result = suite_of(Once)
    assert result.wasSuccessful() and result.testsRun == 8, result.failures + result.errors


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (PromotesTheFailed, "but that trial is failed"),
        (PromotesTwice, "but that trial is running"),
        (WaitsForEver, "although no trial is under way"),
        (StartsWithoutEnd, "after exhausted()"),
        (StartsAfterTheEnd, "after exhausted()"),
        (ChangesWhenAsked, "next() must change nothing"),
        (KeepsBudgets, "a budget of 1 steps for a trial that has taken"),
        (NeedsCheckpointsSilently, "needs_checkpoints is False"),
        (DependsOnMore, "was answered differently"),
        (AnswersAnything, "must return a Verdict, not True"),
        (AnswersNothing, "must return a Verdict, not None"),
        (NeverFinishes, "although no trial is under way"),
    ],
)
def test_a_scheduler_that_breaks_a_law_is_told_which(broken: type[Scheduler], said: str) -> None:
    result = suite_of(broken)
    assert any(said in text for _, text in result.failures + result.errors), result.failures + result.errors
