"""`SearchBook`: what happened in a search, and what follows. Pure: events in, instructions out, and a log to repeat it.

    a place is free ─▶ ┐                          ┌─▶ Begin(trial, attempt, budget)   a process works on a trial
    reported        ─▶ │  SearchBook              ├─▶ StopTrial(trial)                the scheduler has had enough of it
    paused          ─▶ │    trials and restarts   ├─▶ TrialGivenUp(trial, why)              it has failed for good
    ended           ─▶ │    scheduler, sampler    └─▶ Broken(why)                     no trial can ever succeed
    failed          ─▶ ┘
                         └─ log: one line for each event and decision ─▶ store ─▶ SearchBook.replay

                   ┌────────── WAITING ◀── failed, or its launcher ended ──┐
       started ─▶ RUNNING ─▶ PAUSED (at its budget) ─▶ RUNNING (promoted) ─┤─▶ DONE, STOPPED, FAILED

Every line changes the book in the same way whether it is new or repeated, so a search whose launcher was killed goes on
from its log, and a test repeats the decisions of a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ropewalk.search.instructions import Begin, Broken, Instruction, StopTrial, TrialGivenUp
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.schedulers.scheduler import STOP, PromoteTrial, Scheduler, StartTrial
from ropewalk.search.space_text import distribution_of
from ropewalk.search.trial_facts import Retries, TrialFacts, TrialState

Line = list[Any]
"""A line of the log, as JSON can represent it: the kind of an event, then what belongs to it."""
Mode = Literal["max", "min"]

_HOPELESS_TRIALS = 3
"""As many trials that fail in the same way before their first report, when no other has reported anything, end a
search."""


class SearchBook:
    """The state of a search.

    Args:
        scheduler: decides on budgets.
        sampler: chooses configurations; it has begun.
        metrics: names of the objectives.
        modes: for each of them, whether it is maximised or minimised.
        max_trials: the number of trials that are started; None: until the sampler or the scheduler has no more.
        max_restarts: number of times that a trial may fail in the same way without getting further in between.
        first: configurations of the first trials, in place of the sampler's.
        log: called with each line, in order.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sampler: Sampler,
        *,
        metrics: Sequence[str],
        modes: Sequence[Mode],
        max_trials: int | None,
        max_restarts: int = 5,
        first: Sequence[Mapping[str, Any]] = (),
        log: Callable[[Line], object] | None = None,
    ) -> None:
        self.scheduler: Scheduler = scheduler
        self.sampler: Sampler = sampler
        self.metrics: tuple[str, ...] = tuple(metrics)
        self.modes: tuple[Mode, ...] = tuple(modes)
        self.trials: list[TrialFacts] = []
        self.is_stopping = False
        """Whether nothing new may begin: it was interrupted, or its time is over."""
        self.held: set[int] = set()
        """Trials that a user has paused, which are not begun again before the user continues them."""
        self._max_trials, self._max_restarts = max_trials, max_restarts
        self._first = [dict(values) for values in first]
        self._observed: list[Observed] = []
        self._is_exhausted = False
        self._log: Callable[[Line], object] = log or _forget

    # --- looking at it ------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Number of trials that a process works on."""
        return sum(trial.state is TrialState.RUNNING for trial in self.trials)

    @property
    def num_left(self) -> int:
        """Number of trials that have not ended; of those that have not begun, where the search says how many it has."""
        begun = sum(not trial.state.is_final for trial in self.trials)
        if self._max_trials is None or self._is_exhausted:
            return begun
        return begun + max(0, self._max_trials - len(self.trials))

    @property
    def best(self) -> TrialFacts | None:
        """The trial with the best value of the first metric at any step; the earliest of equal ones."""
        scored = [trial for trial in self.trials if trial.best is not None]
        return max(scored, key=lambda trial: (self.score(trial.best), -trial.number), default=None)

    def score(self, value: float | None, objective: int = 0) -> float:
        """Return a value of a metric as something to maximise; NaN and None are the worst."""
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.modes[objective] == "max" else -value

    @property
    def observed(self) -> tuple[Observed, ...]:
        """All trials as samplers see them."""
        return tuple(self._observed)

    # --- a place is free ----------------------------------------------------------------------------------------------

    def begin_next(self) -> Begin | None:
        """Return what a free place should work on; None if there is nothing now.

        If nothing is running either, the search is over.
        """
        if self.is_stopping:
            return None
        for trial in self.trials:
            if trial.state is TrialState.WAITING and trial.number not in self.held:
                return self._begin(["retry", trial.number])
        match self.scheduler.next():
            case PromoteTrial(trial, budget):
                return self._begin(["promote", trial, budget])
            case StartTrial(budget, bracket):
                number = len(self.trials)
                if self._is_exhausted or (self._max_trials is not None and number >= self._max_trials):
                    return self._exhausted()
                values = self._configuration(number)
                if values is None:
                    return self._exhausted()
                return self._begin(["start", number, values, budget, bracket])
            case _:
                return None

    def _exhausted(self) -> Begin | None:
        """Tell the scheduler that no further trial can be started; it may promote others now."""
        if not self._is_exhausted:
            self._note(["exhausted"])
            if isinstance(self.scheduler.next(), PromoteTrial):
                return self.begin_next()
        return None

    def _configuration(self, number: int) -> dict[str, Any] | None:
        if number < len(self._first):
            return dict(self._first[number])
        return self.sampler.ask(number, self._observed)

    def _begin(self, line: Line) -> Begin:
        self._note(line)
        trial = self.trials[int(line[1])]
        return Begin(trial.number, trial.attempts, trial.budget)

    # --- what trials do -----------------------------------------------------------------------------------------------

    def reported(self, trial: int, step: float, values: Sequence[float]) -> list[Instruction]:
        """A trial has logged its metrics at a step.

        Reports that do not go beyond an earlier one are repetitions of an attempt that was lost, and change nothing.

        Args:
            trial: number of the trial.
            step: the step.
            values: the metrics, as they were logged.
        """
        facts = self.trials[trial]
        is_new = step > facts.step or (facts.values is None and step >= 0)  # a loop of the user may count from 0
        if facts.state is not TrialState.RUNNING or facts.is_asked_to_stop or not is_new:
            return []
        self._note(["report", trial, step, list(values)])
        return [StopTrial(trial)] if facts.is_asked_to_stop else []

    def suggested(self, trial: int, values: Mapping[str, Any], distributions: Mapping[str, Any]) -> None:
        """The function of a trial has asked for hyperparameters.

        Args:
            trial: number of the trial.
            values: their values by name.
            distributions: their distributions as data, by name.
        """
        facts = self.trials[trial]
        new = {name: value for name, value in values.items() if name not in facts.suggested}
        if new and not facts.state.is_final:
            self._note(["suggest", trial, new, {name: distributions[name] for name in new}])

    def paused(self, trial: int, step: float) -> None:
        """A trial has written a checkpoint and ended its attempt, at its budget or because it was asked to.

        Args:
            trial: number of the trial.
            step: the last step that it has completed. Its score there is that of its last report.
        """
        if self.trials[trial].state is TrialState.RUNNING:
            self._note(["pause", trial, step])

    def ended(self, trial: int) -> list[Instruction]:
        """A trial's function has returned, or the trial has ended as `StopTrial` said."""
        facts = self.trials[trial]
        if facts.state is not TrialState.RUNNING:
            return []
        if facts.values is None:
            return self._fail(facts, "it ended without a value of its metric", "no metric", Retries.NEVER)
        self._note(["end", trial])
        return []

    def stopped(self, trial: int, why: str) -> None:
        """A user has ended a trial, whatever its state was."""
        if not self.trials[trial].state.is_final:
            self._note(["drop", trial, why])

    def failed(self, trial: int, why: str, failure_class: str, retries: Retries = Retries.IF_NEW) -> list[Instruction]:
        """An attempt has failed: an exception, or the death of its process.

        Args:
            trial: number of the trial.
            why: the cause, in a line.
            failure_class: name of the kind of failure, the same for attempts that fail in the same way.
            retries: whether a further attempt makes sense.
        """
        facts = self.trials[trial]
        if facts.state is not TrialState.RUNNING:
            return []
        return self._fail(facts, why, failure_class, retries)

    def exclude_host(self, trial: int, host: str) -> None:
        """A log policy keeps the next attempts of a trial off a host."""
        if host not in self.trials[trial].excluded_hosts:
            self._note(["exclude", trial, host])

    def _fail(self, facts: TrialFacts, why: str, failure_class: str, retries: Retries) -> list[Instruction]:
        self._note(["fail", facts.number, failure_class, why, retries.value])
        if facts.state is not TrialState.FAILED:
            return []
        same = [
            trial
            for trial in self.trials
            if trial.state is TrialState.FAILED and trial.values is None and failure_class in trial.failures
        ]
        if len(same) >= _HOPELESS_TRIALS and not any(trial.values for trial in self.trials):
            return [
                TrialGivenUp(facts.number, why),
                Broken(f"{len(same)} trials have failed in the same way before they reported anything: {why}"),
            ]
        return [TrialGivenUp(facts.number, why)]

    def extended(self) -> None:
        """The search goes on, and may start more trials than before."""
        if self._is_exhausted:
            self._note(["extend"])

    def suspended(self) -> None:
        """The launcher of the search ended, and another one goes on: what was running has to be begun again."""
        self._note(["suspend"])

    # --- the log ------------------------------------------------------------------------------------------------------

    def replay(self, lines: Iterable[Line], *, checks: bool = True) -> None:
        """Repeat the lines of a log, without logging them again.

        Args:
            lines: the lines, as JSON can represent them.
            checks: whether the scheduler must decide as it did; False takes its decisions from the log.

        Raises:
            ValueError: a line does not fit those before it, or the scheduler decides otherwise than it did: its
                settings, or those of the search, have changed.
        """
        log, self._log = self._log, _forget
        try:
            for number, line in enumerate(lines, 1):
                try:
                    if checks:
                        self._check_decision(line)
                    self._note(line, decides=checks, is_repeated=True)
                except (IndexError, KeyError, TypeError, ValueError) as error:
                    raise ValueError(
                        f"line {number} of the search's log, {line!r:.200}, cannot be repeated: {error}"
                    ) from error
        finally:
            self._log = log

    def _check_decision(self, line: Line) -> None:
        match line:
            case ["start", int(number), dict(), budget, int(bracket)]:
                decision: object = StartTrial(budget, bracket)
                if number != len(self.trials):
                    raise ValueError(f"it starts trial {number}, and {len(self.trials)} trials were started before")
            case ["promote", int(trial), budget]:
                decision = PromoteTrial(trial, budget)
            case _:
                return
        now = self.scheduler.next()
        if now != decision:
            raise ValueError(f"the scheduler says {now} now")

    def _note(self, line: Line, *, decides: bool = True, is_repeated: bool = False) -> None:
        """Change the book as a line says, then log it."""
        match line:
            case ["start", int(number), dict(), budget, int(bracket)]:
                self.trials.append(TrialFacts(number, dict(line[2]), budget, bracket))
                self._observed.append(Observed(number, self.trials[number].hyperparameters, None, 0.0, True))
                self.scheduler.started(number, StartTrial(budget, bracket))
            case ["promote", int(trial), budget]:
                self.trials[trial].begin_again(TrialState.PAUSED)
                self.trials[trial].budget = budget
                self.scheduler.promoted(PromoteTrial(trial, budget))
            case ["retry", int(trial)]:
                self.trials[trial].begin_again(TrialState.WAITING)
            case ["report", int(trial), step, [*values], *told]:
                verdict = self._verdict(trial, float(step), tuple(map(float, values)), None if decides else bool(told))
                if told != verdict and is_repeated:
                    raise ValueError(f"the scheduler {'stops' if verdict else 'does not stop'} trial {trial} now")
                line = ["report", trial, step, values, *verdict]
            case ["suggest", int(trial), dict(), dict()]:
                facts = self.trials[trial]
                facts.hyperparameters |= line[2]
                facts.suggested |= {name: distribution_of(data, name) for name, data in line[3].items()}
                self._observe(facts)
            case ["pause", int(trial), step]:
                self._pause(self.trials[trial], float(step))
            case ["end", int(trial)]:
                self._finish(self.trials[trial], self._end_of(self.trials[trial]))
                self.scheduler.ended(trial)
            case ["drop", int(trial), str(why)]:
                self.trials[trial].why = why
                self._finish(self.trials[trial], TrialState.STOPPED)
                self.scheduler.ended(trial)
            case ["fail", int(trial), str(failure_class), str(why), str(retries)]:
                self._count_failure(self.trials[trial], failure_class, why, Retries(retries))
            case ["exclude", int(trial), str(host)]:
                self.trials[trial].excluded_hosts.append(host)
            case ["exhausted"]:
                self._is_exhausted = True
                self.scheduler.exhausted()
            case ["extend"]:
                self._is_exhausted = False
                self.scheduler.extended()
            case ["suspend"]:
                for facts in self.trials:
                    if facts.state is TrialState.RUNNING:
                        facts.state = TrialState.WAITING
            case _:
                raise ValueError("there is no such event, or something of it is missing")
        self._log(line)

    # --- smaller steps ------------------------------------------------------------------------------------------------

    def _verdict(self, trial: int, step: float, values: tuple[float, ...], told: bool | None) -> list[str]:
        """Note a report, and return ["stop"] if the trial is to stop, by the scheduler or, if not None, by `told`."""
        facts = self.trials[trial]
        self._report(facts, step, values)
        if told is not None:
            facts.is_asked_to_stop = told
        return ["stop"] if facts.is_asked_to_stop else []

    def _end_of(self, facts: TrialFacts) -> TrialState:
        """Return how a trial that has ended by itself ends: it is done unless it was stopped before its last step."""
        most = self.scheduler.max_steps
        is_whole = not facts.is_asked_to_stop or (most is not None and facts.step >= most)
        return TrialState.DONE if is_whole else TrialState.STOPPED

    def _report(self, facts: TrialFacts, step: float, values: tuple[float, ...]) -> None:
        facts.step, facts.values = step, values
        facts.history[step] = self.score(values[0])
        if facts.best is None or self.score(values[0]) > self.score(facts.best):
            facts.best = values[0]
        self._observe(facts)
        if self.scheduler.reported(facts.number, step, self.score(values[0])) is STOP:
            facts.is_asked_to_stop = True

    def _pause(self, facts: TrialFacts, step: float) -> None:
        if facts.is_asked_to_stop or (facts.budget is not None and step >= facts.budget):
            if facts.is_asked_to_stop:
                self._finish(facts, TrialState.STOPPED)
                self.scheduler.ended(facts.number)
            else:
                facts.state = TrialState.PAUSED
                self.scheduler.paused(facts.number, step)
        else:
            facts.state = TrialState.WAITING

    def _count_failure(self, facts: TrialFacts, failure_class: str, why: str, retries: Retries) -> None:
        count = facts.count_failure(failure_class, why)
        most = self._max_restarts
        if retries is Retries.IF_NEW and facts.values is None:
            most = min(1, most)
        if facts.is_asked_to_stop:
            self._finish(facts, TrialState.STOPPED)
            self.scheduler.ended(facts.number)
        elif retries is not Retries.NEVER and count <= most:
            facts.state = TrialState.WAITING
        else:
            self._finish(facts, TrialState.FAILED)
            self.scheduler.failed(facts.number)

    def _finish(self, facts: TrialFacts, state: TrialState) -> None:
        facts.state = state
        self._observe(facts)
        self.sampler.tell(self._observed[facts.number])

    def _observe(self, facts: TrialFacts) -> None:
        scores = None
        if facts.values is not None:
            scores = tuple(self.score(value, objective) for objective, value in enumerate(facts.values))
        self._observed[facts.number] = Observed(
            facts.number,
            facts.hyperparameters,
            scores,
            facts.step,
            not facts.state.is_final,
            facts.state is TrialState.FAILED,
            facts.history,
            facts.state is TrialState.STOPPED,
            facts.suggested,
        )


def _forget(line: Line) -> None:
    """Log nothing."""


__all__ = ["Line", "Mode", "SearchBook"]
