"""Every scheduler that is listed goes through the conformance suite."""

from __future__ import annotations

from ropewalk.search.schedulers import (
    ASHA,
    SCHEDULERS,
    AdaptiveASHA,
    Hyperband,
    MedianStopping,
    NoScheduler,
    Scheduler,
    StoppingASHA,
)
from ropewalk.testing.scheduler_conformance import SchedulerConformance


class TestNoScheduler(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return NoScheduler()


class TestASHA(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return ASHA(R=81, eta=3)


class TestASHAWithBrackets(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return ASHA(R=64, eta=4, max_brackets=3)


class TestStoppingASHA(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return StoppingASHA(R=64, eta=4, max_brackets=2)


class TestAdaptiveASHA(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return AdaptiveASHA(R=64, eta=2, mode="conservative")


class TestHyperband(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return Hyperband(R=9, eta=3)


class TestHyperbandWithoutEnd(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return Hyperband(R=4, eta=2, iterations=None)


class TestMedianStopping(SchedulerConformance):
    def make_scheduler(self) -> Scheduler:
        return MedianStopping(grace=3)


def test_every_scheduler_is_in_here() -> None:
    suites = [value for name, value in globals().items() if name.startswith("Test") and isinstance(value, type)]
    assert {type(suite().make_scheduler()) for suite in suites} == set(SCHEDULERS.values())
