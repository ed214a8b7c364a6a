"""`PopulationSearch`: a search by population based training, which `ropewalk.population.evaluate` carries out.

    PBT ◀─▶ evaluate ─▶ pool: TrainMember: train(run, **hyperparameters) ─▶ records ─▶ store
     │        └─ rows, checkpoints, failures ─▶ the search's run
     └─ copies ─▶ events of the search's run and of the member's, whose configuration changes

A search that was interrupted goes on from the last checkpoint of `evaluate`, which is written when as many intervals
have ended as there are members; intervals after it are trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropewalk.control.view import Observable
from ropewalk.errors import EvaluationFailed, SearchFailed, SearchInvalid
from ropewalk.pool.pool import Pool
from ropewalk.pool.seeds import derive
from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.algorithms.pbt_history import Mutation
from ropewalk.population.evaluating import evaluate
from ropewalk.population.failures import FailurePolicy
from ropewalk.population.rows import Row
from ropewalk.population.run_result import RunResult
from ropewalk.search.book import Mode
from ropewalk.search.member_run import NOTHING_TO_COMPARE, TrainMember
from ropewalk.search.places import TrialRecords
from ropewalk.search.results import SearchResults, run_of_trial
from ropewalk.search.schedulers.population_training import PopulationTraining
from ropewalk.search.space import SearchSpace
from ropewalk.search.store_keeper import StoreKeeper
from ropewalk.search.trial_facts import TrialFacts, TrialState
from ropewalk.search.trial_pool import TrialPool, TrialWorkers
from ropewalk.search.trial_result import TrialResult
from ropewalk.tracking import records
from ropewalk.tracking.observed_run import ObservedRun
from ropewalk.tracking.records import ConfigIs, EventHappened, Record
from ropewalk.tracking.run import Run, RunIdentity
from ropewalk.tracking.store.rows import EventRow
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.writer import StoreWriter

_HOPELESS_INTERVALS = 3
"""As many intervals that fail before any member has reported anything end the search."""
_COPIES = ("exploit", "lost", "restart")
"""Kinds of the events that a member got another state."""
_LOOK_S = 0.5
"""Seconds between looks at requests from other terminals."""


class PopulationSearch:
    """A search by population based training.

    Args:
        settings: those of the population.
        space: the hyperparameters.
        initial: configurations of the first members, by dotted name.
        train: trains members.
        mode: whether the metric is maximised or minimised.
        seed: source of all randomness.
        keeper: keeps the search in a store.
        writer: takes its records.
        time_limit_s: seconds after which it pauses; None: none.
        show: shows how far it is, in a sentence.
    """

    def __init__(
        self,
        settings: PopulationTraining,
        space: SearchSpace,
        initial: Sequence[Mapping[str, Any]],
        train: TrainMember,
        *,
        mode: Mode,
        seed: int,
        keeper: StoreKeeper,
        writer: StoreWriter,
        time_limit_s: float | None,
        show: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._train, self._seed, self._keeper, self._writer = train, seed, keeper, writer
        self._mode: Mode = mode
        self._time_limit_s, self._show, self._settings = time_limit_s, show, settings
        self._folder = keeper.folder / keeper.run
        self._pbt = algorithm_of(settings, space, initial, seed, self._folder / "members")
        self._told: set[str] = set()
        """Copies that are in the store; see `_key`."""
        self._whole = ObservedRun(None)
        self.why_stopping = ""
        """Why the search ends before it is complete; empty if it does not."""

    def begin(self, store: RunStore) -> None:
        """Begin the members' runs, or go on with them.

        Args:
            store: has what was kept of the search so far.
        """
        events = [event for event in store.events(self._keeper.run) if event.kind in _COPIES]
        # An interval that is trained again, as it came after the last checkpoint, may copy another member than before.
        self._told = {_key(event) for event in events}
        known = {row.id for row in store.children(self._keeper.run)}
        for number, values in enumerate(self._pbt.hyperparameters):
            task = self._train.task(number, values, derive(self._seed, number))
            attempts = 2 if task.run in known else 1
            self._keeper.begun(task, TrialFacts(number, values, None, attempts=attempts))

    def run(self, places: MemberPlaces) -> None:
        """Train until every member is done, or the search is asked to pause.

        Raises:
            SearchFailed: members fail before any has reported something, or all of them do.
        """
        began, self._whole = (
            time.monotonic(),
            ObservedRun(_SearchsRun(self._identity(), self._writer, places.has_report)),
        )
        look = self._writer.every(_LOOK_S, self._look)

        def is_over(row: Row) -> bool:
            if self._time_limit_s is not None and time.monotonic() - began > self._time_limit_s:
                self.why_stopping = f"its time limit of {self._time_limit_s:g} s is over"
            return bool(self.why_stopping)

        try:
            self._evaluate(places.pool, self._whole, is_over)
        except EvaluationFailed as error:
            raise SearchFailed(str(error)) from error
        finally:
            look()
            self._tell_copies()

    def end(self, state: str, why: str) -> None:
        """Write the states of all members."""
        for result in self.results():
            facts = TrialFacts(result.number, dict(result.hyperparameters), None, state=TrialState(result.state))
            facts.why = result.why or (why if state == records.FAILED else "")
            # A copy of which an earlier launcher has told may not have come to pass again after its last checkpoint.
            self._writer.put(result.run, ConfigIs(dict(self._pbt.hyperparameters[result.number])))
            self._keeper.changed(facts)

    def results(self) -> SearchResults:
        """Return the members as they are now."""
        trials = self.members()
        schedules = [self._pbt.schedule(number) for number in range(self._pbt.population)]
        return SearchResults(
            trials, (self._train.metric,), (self._mode,), self._keeper.name, self._keeper.run, schedules
        )

    def members(self) -> list[TrialResult]:
        """Return the members as they are now, as trials of the search; may be called by other threads."""
        return [self._result(number) for number in range(self._pbt.population)]

    def population(self) -> Observable | None:
        """Return what the population shows of itself; None before it has begun."""
        return self._whole.part

    # --- smaller steps ------------------------------------------------------------------------------------------------

    def _row(self, generation: int, **row: float) -> None:
        self._tell_copies()
        ranked = self.results().ranked()
        steps = sorted(each.step for each in ranked)
        reached = f"{steps[0]:g}" if steps[0] == steps[-1] else f"{steps[0]:g} to {steps[-1]:g}"
        words = f"generation {generation}, step {reached} of {self._settings.steps}"
        if (best := ranked[0]).best is not None:
            self._keeper.best(self._train.metric, best.best, best.number, generation)
            words += f", best {self._train.metric} {best.best:.5g} (trial {best.number})"
        self._show(words)

    def _evaluate(self, pool: Pool, whole: ObservedRun, is_over: Callable[[Row], bool]) -> RunResult[PBT]:
        return evaluate(
            self._pbt,
            self._train,
            pool,
            mode="generation" if self._settings.synchronous else "steady",
            until=is_over,
            failures=FailurePolicy("worst", nan="worst"),
            checkpoint=self._folder / "generations",
            report=self._row,
            progress=False,  # its fitness is the metric with another sign
            track=whole,
        )

    def _identity(self) -> RunIdentity:
        keeper = self._keeper
        return RunIdentity(keeper.run, keeper.project, keeper.name, self._folder, seed=self._seed)

    def _tell_copies(self) -> None:
        """Write copies that are not in the store yet."""
        for copy in self._pbt.mutations:
            event = _event_of(copy)
            if (key := _key(event)) not in self._told:
                self._told.add(key)
                for run in (self._keeper.run, run_of_trial(self._keeper.run, copy.member)):
                    self._writer.put(run, event)
                self._writer.put(run_of_trial(self._keeper.run, copy.member), ConfigIs(dict(copy.after)))

    def _look(self) -> None:
        """Answer what was asked in other terminals; in the writer's thread."""
        for request in self._keeper.requests():
            if request.trial is not None:
                text = (
                    f"it is a member of a population, which pauses as a whole: ropewalk runs pause {self._keeper.run}"
                )
                self._keeper.answer(request, False, text)
            elif request.action in ("pause", "stop"):
                self.why_stopping = f"it was asked to {request.action}"
                self._keeper.answer(request, True, "it pauses when the intervals of this generation have ended")
            else:
                text = f"a population can be paused and stopped, not {request.action!r}; Ctrl-C ends it at once"
                self._keeper.answer(request, False, text)

    def _result(self, number: int) -> TrialResult:
        pbt, run = self._pbt, run_of_trial(self._keeper.run, number)
        stretches = pbt.schedule(number).stretches
        scores = {float(each.end): each.score for each in stretches}
        step = stretches[-1].end if stretches else 0
        sign = 1 if self._mode == "max" else -1
        state, why = (TrialState.DONE, "") if step >= self._settings.steps else (TrialState.PAUSED, "")
        if pbt.finished and step < self._settings.steps:
            state, why = TrialState.FAILED, "too many of its intervals failed"
        return TrialResult(
            number,
            run,
            state.value,
            dict(stretches[-1].hyperparameters if stretches else pbt.hyperparameters[number]),
            float(step),
            {self._train.metric: sign * stretches[-1].score} if stretches else {},
            sign * stretches[-1].score if stretches else None,  # earlier states are gone
            pbt.intervals[number],
            0,
            scores,
            why,
            # A member that has copied another one's last state has no file of its own.
            self._keeper.folder / run_of_trial(self._keeper.run, stretches[-1].member if stretches else number),
        )


class MemberPlaces:
    """Workers that train members, and the way of their records to the store.

    Args:
        workers: which workers; there are no more than members.
        sink: takes the records of all members.
        train: trains them.
        population: number of members.
    """

    def __init__(self, workers: TrialWorkers, sink: StoreWriter, train: TrainMember, population: int) -> None:
        self._has_report = False
        trials = TrialRecords(sink, workers.name, lambda task, process: None, self._reported)
        for number in range(population):
            trials.expect(train.task(number, {}, 0))
        workers = replace(workers, num=min(workers.num, population))
        self._workers = TrialPool(workers, trials, trials.runs_of, at_most_once=False)

    @property
    def pool(self) -> Pool:
        """The pool that `evaluate` uses."""
        return self._workers.pool

    def _reported(self, event: object) -> None:
        self._has_report = True

    def has_report(self) -> bool:
        """Whether any member has reported the metric in this process."""
        return self._has_report

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._workers.close()


class _SearchsRun(Run):
    """The search's run, in which `evaluate` writes its rows, checkpoints and failures.

    Args:
        identity: what the run is.
        sink: takes its records.
        has_report: tells whether any member has reported something.
    """

    def __init__(self, identity: RunIdentity, sink: StoreWriter, has_report: Callable[[], bool]) -> None:
        super().__init__(identity, {}, sink)
        self._has_report, self._num_failed = has_report, 0

    def resumed_from(self, step: float) -> None:
        """Do nothing: the search itself writes its attempts."""

    def put(self, record: Record) -> None:
        """Write a record.

        Raises:
            SearchFailed: it is the failure of an interval, and no other interval will do better.
        """
        super().put(record)
        if isinstance(record, EventHappened) and record.kind == "evaluation failed" and not self._has_report():
            self._num_failed += 1
            if record.text.startswith(NOTHING_TO_COMPARE):
                raise SearchFailed(record.text.removeprefix(NOTHING_TO_COMPARE))
            if self._num_failed >= _HOPELESS_INTERVALS:
                raise SearchFailed(
                    f"{self._num_failed} intervals have failed before any member reported anything; the last one: "
                    f"{record.text}"
                )


def algorithm_of(
    settings: PopulationTraining,
    space: SearchSpace,
    initial: Sequence[Mapping[str, Any]],
    seed: int,
    folder: Path | None = None,
) -> PBT:
    """Return the algorithm of a search.

    Args:
        settings: those of the population.
        space: the hyperparameters.
        initial: configurations of the first members, by dotted name.
        seed: source of all randomness.
        folder: folder of the members' states; None: none are kept.

    Raises:
        SearchInvalid: a setting is wrong, or the space has conditions or constraints.
    """
    if not space.parameters:
        raise SearchInvalid("a population copies hyperparameters, so that they have to be in space=, and not suggested")
    if conditional := [each.name for each in space.parameters.values() if each.conditions]:
        raise SearchInvalid(f"in a population every hyperparameter is always active, and {conditional[0]} is not")
    if space.constraints:
        raise SearchInvalid("a population changes each hyperparameter by itself, so that its space has no constraints")
    try:
        return PBT(
            {each.name: each.distribution for each in space.parameters.values()},
            population=settings.population,
            interval=settings.interval,
            steps=settings.steps,
            quantile=settings.quantile,
            resample_probability=settings.resample_probability,
            factors=settings.factors,
            burn_in=settings.burn_in,
            synchronous=settings.synchronous,
            initial=initial,
            folder=folder,
            seed=seed,
        )
    except (ValueError, TypeError) as error:
        raise SearchInvalid(f"{settings!r}: {error}") from error


def _key(event: EventHappened | EventRow) -> str:
    """Return what distinguishes a copy from all others: who copied whom, when, and with which hyperparameters."""
    facts = {name: event.data.get(name) for name in ("member", "interval", "donor", "donor_step", "after")}
    return json.dumps([event.kind, facts], sort_keys=True)


def _event_of(copy: Mutation) -> EventHappened:
    data = {
        "member": copy.member,
        "interval": copy.number,
        "donor": copy.donor,
        "step": copy.steps,
        "donor_step": copy.donor_steps,
        "before": copy.before,
        "after": copy.after,
    }
    return EventHappened(copy.reason, str(copy).removeprefix(f"{copy.reason}: "), time.time(), data)


__all__ = ["MemberPlaces", "PopulationSearch", "algorithm_of"]
