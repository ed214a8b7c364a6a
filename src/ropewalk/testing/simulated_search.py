"""`SimulatedSearch`: a search without processes, whose trials take steps in a random order.

    search = SimulatedSearch(ASHA(R=81, eta=3), lambda trial, step: curves[trial][step], rng=random.Random(1))
    search.run()
    [(trial.number, trial.step) for trial in search.trials]

It calls a scheduler as `ropewalk.search` does, notes every call with its answer in `calls`, and raises an
AssertionError at the first answer that breaks a law of `Scheduler`.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.search.schedulers.scheduler import (
    FINISHED,
    GO_ON,
    STOP,
    WAIT,
    PromoteTrial,
    Scheduler,
    StartTrial,
    Verdict,
    Wait,
)


class SimulatedState(enum.Enum):
    """Where a simulated trial is in its life."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(slots=True)
class SimulatedTrial:
    """A trial of a simulated search.

    Attributes:
        number: its number.
        bracket: its bracket.
        budget: the step from which it pauses; None if it does not.
        num_steps: how many of the steps of the search it has taken.
        step: the last of them; 0 before the first.
        state: where it is in its life.
    """

    number: int
    bracket: int
    budget: float | None
    num_steps: int = 0
    step: float = 0
    state: SimulatedState = SimulatedState.RUNNING


@dataclass(frozen=True, slots=True)
class SchedulerCall:
    """A call of a scheduler's method, and its answer."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any


class SimulatedSearch:
    """A search by a scheduler.

    Args:
        scheduler: the scheduler.
        score: returns the score of a trial at a step; None if the trial reports nothing there.
        steps: the steps that a trial takes, increasing; after the last it ends by itself, as at the scheduler's
            `max_steps`.
        num_trials: the most trials.
        places: how many trials run at a time.
        rng: decides what happens next.
        failure_rate: probability that a trial fails, at each step.
        removal_rate: probability that a paused trial is ended or fails, at each step of another.

    Attributes:
        scheduler: the scheduler.
        trials: every trial, by its number.
        running: the trials that are under way.
        calls: every call of the scheduler, in order.
        num_taken: number of steps that all trials have taken.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        score: Callable[[int, float], float | None],
        *,
        steps: Sequence[float] = range(1, 82),
        num_trials: int = 64,
        places: int = 4,
        rng: random.Random | None = None,
        failure_rate: float = 0.0,
        removal_rate: float = 0.0,
    ) -> None:
        self.scheduler, self._score, self._steps = scheduler, score, steps
        self._most_trials, self._places, self._rng = num_trials, places, rng or random.Random(0)
        self._failure_rate, self._removal_rate = failure_rate, removal_rate
        self._is_waiting = self._is_finished = self._is_exhausted = False
        self.trials: list[SimulatedTrial] = []
        self.running: list[SimulatedTrial] = []
        self.calls: list[SchedulerCall] = []
        self.num_taken = 0

    @property
    def is_over(self) -> bool:
        """Whether the scheduler has finished, and no trial is under way."""
        return self._is_finished and not self.running

    def run(self) -> None:
        """Run until it is over.

        Raises:
            AssertionError: the scheduler breaks a law.
        """
        while not self.is_over:
            self.advance()
        assert self._ask() is FINISHED, "next() must stay FINISHED"

    def advance(self) -> None:
        """Let one thing happen: a free place is filled, or a trial takes a step."""
        can_fill = len(self.running) < self._places and not self._is_waiting and not self._is_finished
        if can_fill and (not self.running or self._rng.random() < 0.5):
            self._fill()
        else:
            assert self.running, "next() returned WAIT although no trial is under way: the search would wait for ever"
            self._step(self._rng.choice(self.running))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _call(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self.scheduler, method)(*arguments)
        self.calls.append(SchedulerCall(method, arguments, answer))
        return answer

    def _ask(self) -> StartTrial | PromoteTrial | Wait:
        answer = self._call("next")
        assert answer == self.scheduler.next(), f"next() must change nothing, but it returned {answer} first"
        return answer

    def _fill(self) -> None:
        answer = self._ask()
        if isinstance(answer, StartTrial):
            self._start(answer)
        elif isinstance(answer, PromoteTrial):
            self._promote(answer)
        elif answer is WAIT:
            self._is_waiting = True
        else:
            assert answer is FINISHED, f"next() must return StartTrial, PromoteTrial, WAIT or FINISHED, not {answer!r}"
            self._is_finished = True

    def _start(self, start: StartTrial) -> None:
        assert not self._is_exhausted, (
            f"next() returned {start} after exhausted(); if is_exhausted, return WAIT or FINISHED"
        )
        self._check_budget(start.budget, 0)
        if len(self.trials) == self._most_trials:
            self._is_exhausted = True
            self._call("exhausted")
            return
        trial = SimulatedTrial(len(self.trials), start.bracket, start.budget)
        self.trials.append(trial)
        self.running.append(trial)
        self._call("started", trial.number, start)

    def _promote(self, promote: PromoteTrial) -> None:
        assert 0 <= promote.trial < len(self.trials), f"{promote} names a trial that was never started"
        trial = self.trials[promote.trial]
        assert trial.state is SimulatedState.PAUSED, f"{promote}, but that trial is {trial.state.value}"
        self._check_budget(promote.budget, trial.step)
        trial.budget, trial.state = promote.budget, SimulatedState.RUNNING
        self.running.append(trial)
        self._call("promoted", promote)

    def _check_budget(self, budget: float | None, step: float) -> None:
        if budget is not None:
            assert budget > step, f"a budget of {budget} steps for a trial that has taken {step}"
            assert self.scheduler.needs_checkpoints, "a trial would pause, but needs_checkpoints is False"

    def _step(self, trial: SimulatedTrial) -> None:
        self._is_waiting = False
        self.num_taken += 1
        if self._rng.random() < self._failure_rate:
            self._leave(trial, SimulatedState.FAILED)
        else:
            self._train(trial)
        if self._rng.random() < self._removal_rate:
            self._remove()

    def _remove(self) -> None:
        paused = [trial for trial in self.trials if trial.state is SimulatedState.PAUSED]
        if paused:
            how = self._rng.choice((SimulatedState.ENDED, SimulatedState.FAILED))
            self._leave(self._rng.choice(paused), how)

    def _train(self, trial: SimulatedTrial) -> None:
        trial.step = self._steps[trial.num_steps]
        trial.num_steps += 1
        score = self._score(trial.number, trial.step)
        verdict = GO_ON if score is None else self._call("reported", trial.number, trial.step, score)
        assert isinstance(verdict, Verdict), f"reported() must return a Verdict, not {verdict!r}"
        if verdict is STOP or self._is_at_its_end(trial):
            self._leave(trial, SimulatedState.ENDED)
        elif trial.budget is not None and trial.step >= trial.budget:
            trial.state = SimulatedState.PAUSED
            self.running.remove(trial)
            self._call("paused", trial.number, trial.step)

    def _is_at_its_end(self, trial: SimulatedTrial) -> bool:
        most = self.scheduler.max_steps
        return trial.num_steps == len(self._steps) or (most is not None and trial.step >= most)

    def _leave(self, trial: SimulatedTrial, state: SimulatedState) -> None:
        if trial.state is SimulatedState.RUNNING:
            self.running.remove(trial)
        trial.state = state
        self._call("failed" if state is SimulatedState.FAILED else "ended", trial.number)


def replay(scheduler: Scheduler, calls: Sequence[SchedulerCall]) -> list[SchedulerCall]:
    """Make the same calls to a new scheduler; returns them with its answers."""
    return [
        SchedulerCall(call.method, call.arguments, getattr(scheduler, call.method)(*call.arguments)) for call in calls
    ]
