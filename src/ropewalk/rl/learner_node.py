"""`LearnerNode`: what the learners of programs have in common: progress, evaluations, checkpoints, the end."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import ropewalk as rw
from ropewalk.errors import CheckpointCorrupt, FailedForGood, FileNotTrusted, LimiterDeadlock, NotFinite
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.checkpoints import ExperimentCheckpoints, tell_beginning, tell_interruption
from ropewalk.rl.counters import Counters
from ropewalk.rl.deliveries import ActorFacts
from ropewalk.rl.evaluation_record import EvaluationRecord
from ropewalk.rl.logs.where_time_goes import TimeShares
from ropewalk.rl.replay.table_info import TableInfo
from ropewalk.rl.result import EvaluationScores, TrainingOutcome
from ropewalk.rl.round_learner import LimiterStuck
from ropewalk.rl.slow_calls import SlowCall, SlowCalls
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.variables import Variables

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnerView:
    """What a learner shows.

    Attributes:
        counters: what was done.
        metrics: metrics of the last update.
        digests: digests of the weights.
        variables: the newest weights.
    """

    counters: Counters
    metrics: Mapping[str, float]
    digests: tuple[str, ...]
    variables: Variables


@dataclass(frozen=True)
class LearnerStatus:
    """What a learner says of its progress.

    Attributes:
        counters: what was done.
        metrics: metrics of the last update.
        bound: which side limits the other.
        done: whether the experiment has ended.
        evaluations: since the number that was asked for.
        failure: why training cannot go on, ever; None if it can.
        actors: facts by group of environments; empty in lock-step, where no block is late.
        lost_blocks: blocks that were lost with learners that died; they are collected anew.
        problems: problems of actors and evaluators, since the number that was asked for; training goes on.
        waits_for: the actors whose blocks the learner waits for, in words; "" if it does not, or does not know.
        slow_calls: calls of environments that have not returned.
        num_restored: number of evaluations, of all, that an earlier run has made; they are in the checkpoint.
    """

    counters: Counters
    metrics: Mapping[str, float]
    bound: str
    done: bool
    evaluations: tuple[EvaluationScores, ...]
    failure: Exception | None = None
    actors: Mapping[int, ActorFacts] = field(default_factory=dict[int, ActorFacts])
    lost_blocks: int = 0
    problems: tuple[str, ...] = ()
    waits_for: str = ""
    slow_calls: tuple[SlowCall, ...] = ()
    num_restored: int = 0


@dataclass(frozen=True)
class LearnerLook:
    """What somebody sees who looks closely at a learner.

    Attributes:
        settings: settings of the tables of its replay, by name; see `replay_settings`.
        tables: facts of them.
        actors: facts of the actors that deliver to it, by group; empty in lock-step, where no block is late.
        lags: lags of each group, the number of blocks by lag; see `Deliveries.lags`.
    """

    settings: Mapping[str, Mapping[str, float | None]]
    tables: Mapping[str, TableInfo]
    actors: Mapping[int, ActorFacts] = field(default_factory=dict[int, ActorFacts])
    lags: Mapping[int, list[int]] = field(default_factory=dict[int, list[int]])


_MOST_PROBLEMS = 1000
"""Problems that are told; what follows is in the logs of the nodes alone."""
_HOPELESS = NotFinite, LimiterDeadlock, LimiterStuck
"""Errors that come again after a restart, since the learner goes on from the same state with the same settings."""


class LearnerNode(ABC):
    """The part of a learner's service that does not depend on the order of things.

    Args:
        assembly: makes the parts.
        hold: stay after the end until the program is stopped, so that the script can ask for the outcome.
        rank: which of several learners this is; each has a checkpoint of its own.
    """

    def __init__(self, assembly: Assembly, *, hold: bool, rank: int = 0) -> None:
        experiment = assembly.experiment
        self.assembly = assembly
        self.times = TimeShares()
        self.waits_since: float | None = None
        """When the learner began to wait for experience, by `time.perf_counter`; None while it does not."""
        self._slow_calls = SlowCalls()
        self._hold = hold
        self._evaluations = EvaluationRecord(experiment.evaluation.stop_at if experiment.evaluation else None)
        self._evaluations_lock = threading.Lock()
        self._num_restored = 0
        self._saves_end = False
        """Whether the end is being saved, or was."""
        self._ended = False
        self._failure: Exception | None = None
        self._problems: list[str] = []
        self._frozen: rw.Frozen[Variables] | None = None
        """The newest weights that were asked for, pickled once."""
        self._checkpoints = ExperimentCheckpoints(
            experiment.checkpoint, experiment.checkpoint_s, experiment.in_words(with_steps=False), rank
        )

    @property
    @abstractmethod
    def view(self) -> LearnerView:
        """What this learner has; may be asked for at any time, by any thread."""

    @property
    def is_done(self) -> bool:
        """Whether all steps of the experiment were done, or an evaluation was good enough."""
        return self.counters.steps >= self.assembly.experiment.steps or self._evaluations.is_good_enough

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """What was done."""

    @rw.concurrent(64)
    @rw.idempotent
    def status(self, evaluations_from: int = 0, problems_from: int = 0) -> LearnerStatus:
        """Return the progress.

        Args:
            evaluations_from: number of evaluations that are known already.
            problems_from: number of problems that are known already.
        """
        view = self.view
        with self._evaluations_lock:
            evaluations = tuple(self._evaluations.evaluations[evaluations_from:])
            problems = tuple(self._problems[problems_from:])
            slow_calls = self._slow_calls.at(time.monotonic())
        since = self.waits_since
        actors, lost_blocks = self.delivered()
        return LearnerStatus(
            view.counters.copied(),
            dict(view.metrics),
            self.times.limit(0.0 if since is None else time.perf_counter() - since),
            self._ended,
            evaluations,
            self._failure,
            actors,
            lost_blocks,
            problems,
            self.waits_for(),
            slow_calls,
            self._num_restored,
        )

    @rw.concurrent(64)
    @rw.idempotent
    @abstractmethod
    def look(self) -> LearnerLook:
        """Return how full replay is, and how old the blocks of its actors are."""

    def waits_for(self) -> str:
        """Return the actors whose blocks this learner waits for, in words; "" if it does not know."""
        return ""

    def delivered(self) -> tuple[Mapping[int, ActorFacts], int]:
        """Return facts of the actors by group, and the number of lost blocks."""
        return {}, 0

    @rw.concurrent(64)
    @rw.idempotent
    def newest_variables(self, have: int) -> Variables | None:
        """Return the newest weights, or None if they have the version `have`."""
        return None if self.view.variables.version == have else self._frozen_newest()

    def _frozen_newest(self) -> Variables:
        """Return the newest weights, as the answer to a call that every caller on the host shares."""
        variables = self.view.variables
        if self._frozen is None or self._frozen.value is not variables:
            self._frozen = rw.Frozen(variables)
        return cast("Variables", self._frozen)  # the caller gets the value

    @rw.concurrent(64)
    @rw.idempotent
    def report_evaluation(self, scores: EvaluationScores) -> bool:
        """Keep the scores of an evaluator; one that comes again is dropped.

        So is one that comes when the experiment has ended with a good enough score: the end is saved without it.

        Returns:
            Whether the weights are the best so far, and are to be sent by `keep_best`.
        """
        with self._evaluations_lock:
            if self._saves_end and self._evaluations.is_good_enough:
                return False
            return self._evaluations.add(scores)

    @rw.concurrent(64)
    @rw.idempotent
    def keep_best(self, scores: EvaluationScores, variables: Variables) -> None:
        """Keep the weights of an evaluation, if it is still the best."""
        with self._evaluations_lock:
            self._evaluations.keep(scores, variables)

    @rw.concurrent(64)
    @rw.idempotent
    def report_problem(self, problem: str) -> None:
        """Keep what another node says is wrong, for the script; one that comes again is dropped."""
        with self._evaluations_lock:
            if problem not in self._problems and len(self._problems) < _MOST_PROBLEMS:
                if not self._hold:  # otherwise the script logs it
                    logger.warning("%s", problem)
                self._problems.append(problem)

    @rw.concurrent(64)
    @rw.idempotent
    def report_slow_call(self, slow: SlowCall) -> None:
        """Keep what an actor or an evaluator says of a call that has not returned; it says so again every second."""
        with self._evaluations_lock:
            self._slow_calls.note(slow, time.monotonic())

    @rw.concurrent(64)
    @rw.idempotent
    def outcome(self) -> TrainingOutcome:
        """Return what was learned so far."""
        view = self.view
        with self._evaluations_lock:
            record = self._evaluations
            evaluations = tuple(record.evaluations)
            return TrainingOutcome(view.variables, view.counters.copied(), view.digests, evaluations, record.best)

    @abstractmethod
    def train(self) -> None:
        """Learn until the steps are done, or the program stops."""

    def run(self) -> None:
        """Learn, and save and tell the end."""
        try:
            with one_torch_thread():
                rw.checkpoint_here()  # says, before the first round or batch has come, that this is where to save
                self.train()
        except _HOPELESS as error:
            if rw.stopping():
                raise
            if not self._hold:
                raise FailedForGood(f"{type(error).__name__}: {error}") from error
            logger.exception("training cannot go on")
            self.fail(error)
            rw.wait_for_stop()
        else:
            self._end()

    def fail(self, error: Exception) -> None:
        """Tell the script why training cannot go on."""
        self._failure = self._failure or error

    def restore(self) -> None:
        """Go on from the experiment's checkpoint, if there is one; a checkpoint of this program is newer.

        Raises:
            FailedForGood: it cannot be used, and neither could it after a restart.
        """
        try:
            state = self._checkpoints.load()
            if state is None:
                return
            with self._checkpoints.fitting():
                self.load_state_dict(state)
            self._num_restored = len(self._evaluations.evaluations)
        except (ValueError, CheckpointCorrupt, FileNotTrusted) as error:
            raise FailedForGood(f"{type(error).__name__}: {error}") from error
        tell_beginning(self.counters.steps, self.assembly.experiment.steps, self.assembly.experiment.checkpoint)

    def saved_here(self) -> None:
        """Save what is due, between two steps of the learner."""
        rw.checkpoint_here()
        self._checkpoints.save_if_due(self.state_dict)

    def _end(self) -> None:
        """Save the end, and end the program or wait until it is ended."""
        is_saved = True
        with self._evaluations_lock:
            self._saves_end = True
        try:
            self._checkpoints.save(self.state_dict)
        except OSError as error:
            if not self._hold:  # what was learned is nowhere else
                raise
            is_saved = False
            logger.error("the last checkpoint of the experiment was not saved: %s", error)
        if rw.stopping():
            if is_saved and not self.is_done:
                experiment = self.assembly.experiment
                tell_interruption(self.counters.steps, experiment.steps, experiment.checkpoint)
            return
        ends_program = self.settle()
        self._ended = True
        if ends_program and not self._hold:
            rw.stop(f"the experiment has ended after {self.counters.steps:,} steps")
        rw.wait_for_stop()

    def settle(self) -> bool:
        """Wait, after this learner has saved the end, for others that have to; returns whether it ends the program."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluations; subclasses add everything that they depend on."""
        with self._evaluations_lock:
            return {"evaluations": self._evaluations.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        with self._evaluations_lock:
            self._evaluations.load_state_dict(state["evaluations"])


__all__ = ["LearnerLook", "LearnerNode", "LearnerStatus", "LearnerView"]
