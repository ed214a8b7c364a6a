"""`SearchRun`: the loop that carries out what a `SearchBook` decides.

book.begin_next() ─▶ places.begin(task)            places.next_event() ─▶ book ─▶ StopTrial, TrialGivenUp, Broken
every line of the book ─▶ store                    records of trials ─▶ store
requests from other terminals ◀─ store             Ctrl-C: trials pause at their next step, a second one ends them
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ropewalk.errors import SearchFailed
from ropewalk.escaping import escaped
from ropewalk.last_line import last_line
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.quantities import counted
from ropewalk.search.book import SearchBook
from ropewalk.search.instructions import Begin, Broken, Instruction, StopTrial
from ropewalk.search.places import (
    AttemptBegun,
    AttemptDied,
    AttemptEvent,
    AttemptReported,
    AttemptReturned,
    AttemptSuggested,
    Places,
)
from ropewalk.search.search_keeper import SearchKeeper, SearchRequest
from ropewalk.search.trial_facts import Retries, TrialFacts, TrialState
from ropewalk.search.trial_task import Request, TrialOutcome, TrialTask
from ropewalk.tracking.log_policies import LogPolicy, findings
from ropewalk.transport.failures import remote_traceback

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Seconds between looks at the clock and at requests from other terminals."""
_STOOD_STILL_S = 2 * _LOOK_S
"""Seconds between two such looks, beyond which this process was stopped (SIGSTOP, the lid of a laptop), or a sampler
has computed for as long."""
_MOST_EVENTS = 100
"""Events between two such looks, however many there are."""
GRACE_S = 10.0
"""Seconds that trials get to reach their next step and write a checkpoint, when a search is interrupted."""

_WHY_ENDED = {"stop": "a user stopped it", "kill": "a user killed it"}


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What ends attempts, or the search, by time, and what is made of the output of those that fail.

    Attributes:
        time_limit_s: seconds after which no further attempt begins, and those under way pause.
        silent_s: seconds without a report of the metrics after which an attempt is killed.
        log_policies: what follows from words in the cause of a failure.
    """

    time_limit_s: float | None = None
    silent_s: float | None = None
    log_policies: Sequence[LogPolicy] = ()


@dataclass(slots=True)
class _UnderWay:
    """An attempt that a place works on."""

    task: TrialTask
    heard: float | None = None
    """When it last reported something, or began; None: no process works on it yet."""
    host: str = ""
    """Where it runs; empty before it is known."""
    killed_for: str = ""
    """Why it was killed by this search; empty if it was not."""
    stopped_for: str = ""
    """Why a user has it end."""
    is_moving: bool = False
    """Whether it was asked to pause because its host is about to be taken away; it goes on at once on another one."""


class SearchRun:
    """A search that runs.

    Args:
        book: what is decided.
        places: where attempts run.
        keeper: where everything is kept.
        limits: limits of time, and policies.
        make_task: makes the task of an attempt.
        show: called after every change.
        note: prints a sentence for whoever waits for the search.
        clock: seconds, for limits.
    """

    def __init__(
        self,
        book: SearchBook,
        places: Places,
        keeper: SearchKeeper,
        limits: SearchLimits,
        make_task: Callable[[Begin], TrialTask],
        show: Callable[[], object] = lambda: None,
        note: Callable[[str], object] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book, self._places, self._keeper, self._limits = book, places, keeper, limits
        self._make_task, self._show, self._note, self._clock = make_task, show, note, clock
        self._under_way: dict[int, _UnderWay] = {}
        self._began = self._looked = clock()
        self._kill_at: float | None = None
        self._best = book.score(None if book.best is None else book.best.best)
        self._has_warned = False
        """Whether it was said that values which are not finite are reported."""
        self._has_told_budget = False
        """Whether it was said that trials do not pause at their budgets."""
        self._has_pointed = False
        """Whether it was said where the traceback of a failure is shown."""
        self.why_stopping = ""
        """Why the search ends before it is complete; empty if it does not."""

    def run(self) -> None:
        """Run until nothing is left to do, or until the search was interrupted and nothing is under way any more.

        Raises:
            SearchFailed: every trial fails in the same way, or logs something else than the metrics.
            RopewalkError: no process can be started any more.
            KeyboardInterrupt: the second one; attempts under way are lost back to their last checkpoints.
        """
        while True:
            try:
                with interrupts_deferred:  # an event that was taken must not be lost
                    self._fill()
                    self._take_events()
                    self._look()
                    self._show()
                    if not self._under_way:
                        self._note_held()
                        return
                self._places.wait(_LOOK_S)
            except KeyboardInterrupt:
                if self._kill_at is not None:
                    raise
                self._wind_up("Ctrl-C")

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        # A trial that may not begin where a place is free leaves that place to another one.
        num_held_back = sum(map(_is_held_back, self._under_way.values()))
        while len(self._under_way) - num_held_back < self._places.num and (begin := self.book.begin_next()) is not None:
            task = self._make_task(begin)
            self._under_way[begin.trial] = _UnderWay(task)
            self._keeper.begun(task, self.book.trials[begin.trial])
            self._places.begin(task)
            num_held_back += bool(task.excluded_hosts)

    def _note_held(self) -> None:
        """The search is not complete while a user has trials paused."""
        held = [trial for trial in self.book.trials if trial.state is TrialState.WAITING]
        if held and not self.why_stopping:
            self.why_stopping = f"a user has paused trial {', '.join(str(trial.number) for trial in held)}"

    # --- what attempts say --------------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        for _ in range(_MOST_EVENTS):
            if (event := self._places.next_event()) is None:
                return
            self._take(event)
            self._fill()  # a place that is free waits for nothing else

    def _take(self, event: AttemptEvent) -> None:
        attempt = self._under_way.get(event.trial)
        if attempt is None or attempt.task.attempt != event.attempt:
            return  # the report of an attempt whose outcome has come already
        match event:
            case AttemptBegun(_, _, host):
                attempt.heard, attempt.host = self._clock(), host
            case AttemptReported(_, _, step, values):
                attempt.heard = self._clock()
                self._reported(attempt.task, step, values)
            case AttemptSuggested(trial, _, values, distributions):
                attempt.heard = self._clock()
                self.book.suggested(trial, values, distributions)
            case AttemptReturned(trial, _, outcome):
                del self._under_way[trial]
                attempt.host = outcome.host or attempt.host
                try:
                    self._ended(attempt, outcome)
                finally:  # also if the search ends with it
                    self._keeper.changed(self.book.trials[trial])
            case AttemptDied(trial, _, cause, failure_class):
                del self._under_way[trial]
                try:
                    self._died(attempt, cause, failure_class)
                finally:
                    self._keeper.changed(self.book.trials[trial])

    def _reported(self, task: TrialTask, step: float, values: Sequence[float], *, ends: bool = False) -> None:
        trial = task.trial
        self._carry_out(self.book.reported(trial, step, values), ends=ends)
        self._keep_best(self.book.trials[trial])
        if not (self._has_warned or all(map(math.isfinite, values))):
            self._has_warned = True
            logger.warning("%s", _not_finite_in_words(trial, step, dict(zip(self.book.metrics, values, strict=True))))
        # A budget may be a fraction, at whose next step a trial pauses.
        if not self._has_told_budget and task.budget is not None and step >= task.budget + 1:
            self._has_told_budget = True
            logger.warning("%s", _beyond_budget_in_words(trial, step, task.budget))

    def _keep_best(self, facts: TrialFacts) -> None:
        """Keep the best trial so far, if this one has become it."""
        if (score := self.book.score(facts.best)) > self._best and facts.best is not None:
            self._best = score
            self._keeper.best(self.book.metrics[0], facts.best, facts.number, len(self.book.trials))

    def _ended(self, attempt: _UnderWay, outcome: TrialOutcome) -> None:
        trial = attempt.task.trial
        self.book.suggested(trial, *outcome.suggested)
        for step, values in outcome.reports:
            self._reported(attempt.task, step, values, ends=True)
        facts = self.book.trials[trial]
        match outcome.outcome:
            case "paused" if not attempt.stopped_for and facts.values is None and _is_at_budget(attempt.task, outcome):
                self._has_no_metric(attempt, outcome)
            case "paused":
                self._stopped_or_paused(attempt, outcome.step)
            case "stopped" if not facts.is_asked_to_stop:
                self._was_stopped(attempt, outcome)
            case "failed":
                retries = Retries.NEVER if attempt.stopped_for else Retries.IF_NEW
                self._failed(attempt, outcome.cause, outcome.failure_class, retries)
            case "done" if facts.values is None:
                self._has_no_metric(attempt, outcome)
            case _:
                self._carry_out(self.book.ended(trial))

    def _stopped_or_paused(self, attempt: _UnderWay, step: float) -> None:
        """An attempt is over before its trial is, which goes on from its last checkpoint unless a user stopped it."""
        if attempt.stopped_for:
            self.book.stopped(attempt.task.trial, attempt.stopped_for)
        else:
            self.book.paused(attempt.task.trial, step)

    def _was_stopped(self, attempt: _UnderWay, outcome: TrialOutcome) -> None:
        """An attempt has stopped as asked: by a user, or because it is a thread, which cannot be killed."""
        trial = attempt.task.trial
        if attempt.killed_for and not attempt.stopped_for and self._kill_at is not None:
            self.book.paused(trial, outcome.step)
        elif attempt.killed_for and not attempt.stopped_for:
            self._failed(attempt, attempt.killed_for, "silent", Retries.IF_NEW)
        else:
            self.book.stopped(trial, attempt.stopped_for or "it was asked to")

    def _has_no_metric(self, attempt: _UnderWay, outcome: TrialOutcome) -> None:
        names = " and ".join(map(repr, self.book.metrics))
        logged = f"it logged {', '.join(map(repr, outcome.logged))}" if outcome.logged else "it logged nothing"
        where = f"trial {attempt.task.trial} ended" + (f" after step {outcome.step:g}" if outcome.step else "")
        why = (
            f"{where} without a value of {names}: {logged}. "
            f"Log the metric of the search with run.log({{{self.book.metrics[0]!r}: value}}, step=...), or return it "
            "from the function"
        )
        first = not any(facts.values for facts in self.book.trials)
        briefly = f"it ended without a value of {names}" if first else why  # the end of the search says the rest
        self._carry_out(self.book.failed(attempt.task.trial, briefly, "no metric", Retries.NEVER))
        if first:
            raise SearchFailed(why)

    def _died(self, attempt: _UnderWay, cause: str, failure_class: str) -> None:
        task, facts = attempt.task, self.book.trials[attempt.task.trial]
        cause = f"{attempt.killed_for}: {cause}" if attempt.killed_for else cause
        self._keeper.died(task, cause, failure_class, facts.step)
        if attempt.stopped_for or self._kill_at is not None:
            self._stopped_or_paused(attempt, facts.step)
        elif attempt.killed_for:
            self._failed(attempt, cause, "silent", Retries.IF_NEW)
        else:
            self._failed(attempt, cause, failure_class, Retries.ALWAYS)

    def _failed(self, attempt: _UnderWay, cause: str, failure_class: str, retries: Retries) -> None:
        found = findings(self._limits.log_policies, cause.splitlines())
        if found.labels:
            self._keeper.labelled(attempt.task, found.labels)
        if found.no_retry:
            retries = Retries.NEVER
        if found.exclude_host and attempt.host:
            self._keeper.excluded(attempt.task, attempt.host, found.lines)
            self.book.exclude_host(attempt.task.trial, attempt.host)
        why = last_line(cause)
        where = ""
        if "\n" in cause.strip() and not self._has_pointed:
            self._has_pointed = True
            where = f"; ropewalk runs show {attempt.task.run} shows its traceback. This is said once"
        logger.warning("trial %d, attempt %d: %s%s", attempt.task.trial, attempt.task.attempt, escaped(why), where)
        self._carry_out(self.book.failed(attempt.task.trial, why, failure_class, retries), cause=cause)

    def _carry_out(self, instructions: Sequence[Instruction], *, ends: bool = False, cause: str = "") -> None:
        for instruction in instructions:
            match instruction:
                case StopTrial(trial):
                    if not ends:
                        self._places.request(self._under_way[trial].task, Request.STOP)
                case Broken(why):
                    raise SearchFailed(why) from (remote_traceback(cause) if "\n" in cause.strip() else None)
                case _:
                    pass

    # --- time, and other terminals ------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return
        self._forgive(now - self._looked - _STOOD_STILL_S, now)
        self._looked = now
        for request in self._keeper.requests():
            self._answer(request)
        limits = self._limits
        if limits.time_limit_s is not None and now - self._began > limits.time_limit_s and self._kill_at is None:
            self._wind_up(f"its time limit of {limits.time_limit_s:g} s is over")
        for attempt in self._under_way.values():
            if attempt.killed_for:
                continue
            if self._kill_at is not None and now > self._kill_at:
                self._kill(attempt, f"it did not reach its next step within {GRACE_S:g} s after the search was ended")
            elif limits.silent_s is not None and attempt.heard is not None and now - attempt.heard > limits.silent_s:
                names = ", ".join(self.book.metrics)
                self._kill(attempt, f"it has not reported {names} for {limits.silent_s:g} s (silent_s)")
            elif not attempt.is_moving and self._places.is_leaving(attempt.task):
                attempt.is_moving = True
                self._places.request(attempt.task, Request.PAUSE)
        self._give_up_without_hosts()

    def _forgive(self, stood_still_s: float, now: float) -> None:
        """Count the time as no silence of attempts in which this loop stood still, and could hear none of them."""
        if stood_still_s <= 0:
            return
        for attempt in self._under_way.values():
            if attempt.heard is not None:
                attempt.heard = min(now, attempt.heard + stood_still_s)
        if self._kill_at is not None:
            self._kill_at += stood_still_s

    def _give_up_without_hosts(self) -> None:
        """End trials that no place will ever take, because log policies keep them off the hosts of all places."""
        held_back = [attempt for attempt in self._under_way.values() if _is_held_back(attempt)]
        hosts = self._places.hosts() if held_back else ()
        if len(hosts) < self._places.num:
            return  # a worker that is still to come may be on another host
        for attempt in held_back:
            trial, excluded = attempt.task.trial, attempt.task.excluded_hosts
            if all(host in excluded for host in hosts):
                del self._under_way[trial]
                self._places.kill(attempt.task)
                why = (
                    f"a log policy keeps it off {', '.join(excluded)}, and no worker of the search is on another host; "
                    f"it failed there with: {self.book.trials[trial].why}"
                )
                instructions = self.book.failed(trial, why, "no host", Retries.NEVER)
                self._keeper.changed(self.book.trials[trial])
                self._carry_out(instructions)

    def _wind_up(self, why: str) -> None:
        """Begin nothing more, and have everything under way pause."""
        self.book.is_stopping, self.why_stopping = True, why
        self._kill_at = self._clock() + GRACE_S
        for trial, attempt in list(self._under_way.items()):
            self._places.request(attempt.task, Request.PAUSE)
            if attempt.heard is None:  # it may wait for a process for hours
                del self._under_way[trial]
                self._stopped_or_paused(attempt, self.book.trials[trial].step)
                self._keeper.changed(self.book.trials[trial])
        self._note(_waiting_in_words(why, len(self._under_way)))

    def _kill(self, attempt: _UnderWay, why: str) -> None:
        attempt.killed_for = why
        self._places.kill(attempt.task)

    def _answer(self, request: SearchRequest) -> None:
        if request.trial is None:
            self._answer_for_all(request)
            return
        facts, attempt = self.book.trials[request.trial], self._under_way.get(request.trial)
        match request.action:
            case _ if facts.state.is_final:
                self._keeper.answer(request, False, f"trial {request.trial} is {facts.state.value} already")
                return
            case "continue" if facts.state is TrialState.PAUSED:
                text = (
                    f"trial {request.trial} has used its budget of {facts.budget:g} steps and waits for the scheduler; "
                    "a fork of it goes on at once: ropewalk runs fork"
                )
                self._keeper.answer(request, False, text)
                return
            case "continue":
                self.book.held.discard(request.trial)
                text = f"trial {request.trial} goes on when a place is free"
            case "pause":
                self.book.held.add(request.trial)
                if attempt:
                    self._places.request(attempt.task, Request.PAUSE)
                text = f"trial {request.trial} pauses at its next step"
            case "stop" | "kill":
                self._end_trial(request, facts, attempt)
                return
            case other:
                self._keeper.answer(
                    request, False, f"a trial can be paused, continued, stopped and killed, not {other!r}"
                )
                return
        self._keeper.answer(request, True, text)

    def _end_trial(self, request: SearchRequest, facts: TrialFacts, attempt: _UnderWay | None) -> None:
        why, trial = _WHY_ENDED[request.action], f"trial {facts.number}"
        if attempt is None:
            self._keeper.answer(request, True, f"{trial} is stopped")  # first, or its state answers that it has ended
            self.book.stopped(facts.number, why)
            self._keeper.changed(facts)
            return
        attempt.stopped_for = why
        if request.action == "stop":
            self._places.request(attempt.task, Request.STOP)
            self._keeper.answer(request, True, f"{trial} stops at its next step")
        else:
            self._kill(attempt, why)
            self._keeper.answer(request, True, f"{trial} is being killed")

    def _answer_for_all(self, request: SearchRequest) -> None:
        match request.action:
            case "pause" | "stop":
                self._keeper.answer(request, True, "every trial pauses at its next step, then the search ends")
                self._wind_up(f"it was asked to {request.action}")
            case "kill":
                self._keeper.answer(request, True, "all trials are being killed")
                self._wind_up("it was killed")
                self._kill_at = self._clock()
            case other:
                self._keeper.answer(request, False, f"a search can be paused, stopped and killed, not {other!r}")


def _waiting_in_words(why: str, num: int) -> str:
    if not num:
        return f"{why}: no trial has begun, so the search ends its processes"
    again = "; Ctrl-C again kills them now, and they go on from their last checkpoints" if why == "Ctrl-C" else ""
    trials = counted(num, "trial")
    return f"{why}: waits up to {GRACE_S:g} s for {trials} to reach the next step and write a checkpoint{again}"


def _not_finite_in_words(trial: int, step: float, values: Mapping[str, float]) -> str:
    odd = ", ".join(f"{name} {value:g}" for name, value in values.items() if not math.isfinite(value))
    return (
        f"trial {trial} reported {odd} at step {step:g}. NaN ranks below every number, an infinity counts as it is, "
        f"and the trial goes on; to end such trials, let the function return, or raise. This is said once"
    )


def _beyond_budget_in_words(trial: int, step: float, budget: float) -> str:
    return (
        f"trial {trial} reported step {step:g}, and was to pause after step {budget:g}: trials pause in `for step in "
        f"run.steps(total)`, and run.log without step= takes its step. Without that the scheduler ends no trial early. "
        f"This is said once"
    )


def _is_held_back(attempt: _UnderWay) -> bool:
    """Whether an attempt may wait for a place on another host while places are free."""
    return attempt.heard is None and bool(attempt.task.excluded_hosts)


def _is_at_budget(task: TrialTask, outcome: TrialOutcome) -> bool:
    return task.budget is not None and outcome.step >= task.budget


__all__ = ["GRACE_S", "SearchLimits", "SearchRun"]
