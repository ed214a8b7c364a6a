"""The conformance suite of schedulers of searches.

    class TestMine(SchedulerConformance):          # pytest runs its methods; pytest is not needed to import this
        def make_scheduler(self) -> Scheduler:
            return Mine(patience=3)

The law is that of `ropewalk.search.Scheduler`: the calls, in their order, decide everything. `SimulatedSearch`
makes the calls, in random orders, and checks each answer: only paused trials are promoted, to a larger budget; `next`
changes nothing; after `exhausted` nothing starts; WAIT is only returned while a trial is under way.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ropewalk.search.schedulers.scheduler import FINISHED, Scheduler, StartTrial
from ropewalk.testing.conformance_suite import ConformanceSuite
from ropewalk.testing.simulated_search import SimulatedSearch, SimulatedState, replay

Score = Callable[[int, float], float | None]
"""The score of a trial at a budget: from the number of the trial and its budget; None for a failure."""


class SchedulerConformance(ConformanceSuite):
    """The suite: subclass it, override `make_scheduler`, and run it by pytest or with the tests of `all_tests()`."""

    num_orders: int = 20
    """The number of random orders that each test tries."""
    steps: Sequence[float] = (1, 2, 3, 4, 9, 16, 27, 64, 81)
    """The steps of a trial."""
    places: Sequence[int] = (1, 2, 7)
    """How many trials run at a time."""
    num_trials: Sequence[int] = (1, 5, 40)
    """The most trials of a search."""

    def make_scheduler(self) -> Scheduler:
        """Make a scheduler, the same each time."""
        raise NotImplementedError("say how your scheduler is made: override make_scheduler()")

    # --- tests --------------------------------------------------------------------------------------------------------

    def test_a_search_finishes_and_every_law_is_kept(self) -> None:
        """In every order, and whatever number of trials there is."""
        for search in self._searches():
            search.run()
            self._check_conservation(search)

    def test_a_search_finishes_although_trials_fail(self) -> None:
        """Some trials fail under way; some are ended, or fail, while they are paused."""
        for search in self._searches(failure_rate=0.1, removal_rate=0.1):
            search.run()
            self._check_conservation(search)

    def test_a_search_finishes_if_all_trials_fail(self) -> None:
        """No trial reports anything, and none is promoted."""
        for search in self._searches(failure_rate=1.0):
            search.run()
            assert all(trial.state is SimulatedState.FAILED for trial in search.trials)
            assert Counter(call.method for call in search.calls)["promoted"] == 0

    def test_the_same_calls_give_the_same_answers(self) -> None:
        """A search that is resumed makes the calls of its log again."""
        for search in self._searches(failure_rate=0.05, removal_rate=0.05):
            search.run()
            again = replay(self.make_scheduler(), search.calls)
            for number, (call, repeated) in enumerate(zip(search.calls, again, strict=True)):
                assert call == repeated, f"call {number} was answered differently: {call}, then {repeated}"

    def test_a_search_resumed_in_the_middle_goes_on(self) -> None:
        """After any part of the log, a new scheduler answers `next` as the old one did."""
        for search in self._searches():
            while not search.is_over:
                for _ in range(50):
                    if not search.is_over:
                        search.advance()
                resumed = self.make_scheduler()
                replay(resumed, search.calls)
                answer, before = resumed.next(), search.scheduler.next()
                assert answer == before, f"after the calls of the log next() returns {answer!r}, and {before!r} before"

    def test_scores_may_be_anything(self) -> None:
        """All scores equal, worst, best, or missing: the search finishes."""
        scores: dict[str, Score] = {
            "equal": lambda trial, step: 0.5,
            "worst": lambda trial, step: -math.inf,
            "best": lambda trial, step: math.inf,
            "missing": lambda trial, step: None,
            "missing or worst": lambda trial, step: -math.inf if trial % 2 else None,
        }
        for score in scores.values():
            for search in self._searches(score):
                search.run()
                self._check_conservation(search)

    def test_a_start_that_was_not_carried_out_never_happened(self) -> None:
        """A scheduler that is asked, without `started`, gives the same answer as before."""
        scheduler = self.make_scheduler()
        first = scheduler.next()
        assert isinstance(first, StartTrial), f"a search begins with a StartTrial, not {first}"
        answers = [scheduler.next() for _ in range(100)]
        assert answers == [first] * 100, f"next() without started() must return {first!r} again, not {answers!r}"

    def test_no_trial_at_all_is_a_finished_search(self) -> None:
        """The space may be exhausted from the beginning, and `exhausted` may be called again."""
        scheduler = self.make_scheduler()
        scheduler.exhausted()
        scheduler.exhausted()
        answer = scheduler.next()
        assert answer is FINISHED, f"no trial was started and none will be: next() must return FINISHED, not {answer!r}"

    # --- searches -----------------------------------------------------------------------------------------------------

    def score(self, trial: int, step: float) -> float | None:
        """Return the score of a trial at a step; by default, some learn fast and some far, with ties."""
        draw = random.Random(trial)
        last, pace = draw.randrange(10) / 10, draw.choice((1, 5, 20))
        return round(last * (1 - math.exp(-step / pace)), 2)

    def _searches(self, score: Score | None = None, **options: Any) -> Iterator[SimulatedSearch]:
        for order in range(self.num_orders):
            rng = random.Random(order)
            yield SimulatedSearch(
                self.make_scheduler(),
                score or self.score,
                steps=self.steps,
                num_trials=self.num_trials[order % len(self.num_trials)],
                places=rng.choice(self.places),
                rng=rng,
                **options,
            )

    def _check_conservation(self, search: SimulatedSearch) -> None:
        """Check that each trial was started once, and left once: none is under way at the end."""
        counts = Counter(call.method for call in search.calls)
        states = Counter(trial.state for trial in search.trials)
        assert counts["started"] == len(search.trials)
        assert states[SimulatedState.RUNNING] == 0
        assert counts["ended"] + counts["failed"] == states[SimulatedState.ENDED] + states[SimulatedState.FAILED]
        assert counts["paused"] - counts["promoted"] >= states[SimulatedState.PAUSED] >= 0
