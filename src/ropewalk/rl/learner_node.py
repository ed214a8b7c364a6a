"""`LearnerNode`: what the learners of programs have in common: progress, evaluations, checkpoints, the end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import ropewalk as rw
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.checkpoints import ExperimentCheckpoints
from ropewalk.rl.counters import Counters
from ropewalk.rl.logs.where_time_goes import TimeShares
from ropewalk.rl.result import EvaluationScores, TrainingOutcome
from ropewalk.rl.variables import Variables


@dataclass(frozen=True)
class LearnerView:
    """What a learner shows.

    Attributes:
        counters: what was done.
        metrics: of the last update.
        digests: of the weights.
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
        metrics: of the last update.
        bound: which side limits the other.
        done: whether the experiment has ended.
        evaluations: since the number that was asked for.
    """

    counters: Counters
    metrics: Mapping[str, float]
    bound: str
    done: bool
    evaluations: tuple[EvaluationScores, ...]


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
        self._hold = hold
        self._evaluations: list[EvaluationScores] = []
        self._evaluations_lock = threading.Lock()
        self._ended = False
        self._frozen: rw.Frozen[Variables] | None = None
        """The newest weights that were asked for, pickled once."""
        self._checkpoints = ExperimentCheckpoints(experiment.checkpoint, experiment.checkpoint_s, rank)

    @property
    @abstractmethod
    def view(self) -> LearnerView:
        """What this learner has; may be asked for at any time, by any thread."""

    @property
    def is_done(self) -> bool:
        """Whether all steps of the experiment were done."""
        return self.counters.steps >= self.assembly.experiment.steps

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """What was done."""

    @rw.concurrent(64)
    @rw.idempotent
    def status(self, evaluations_from: int = 0) -> LearnerStatus:
        """Return the progress.

        Args:
            evaluations_from: number of evaluations that are known already.
        """
        view = self.view
        with self._evaluations_lock:
            evaluations = tuple(self._evaluations[evaluations_from:])
        return LearnerStatus(deepcopy(view.counters), dict(view.metrics), self.times.limit(), self._ended, evaluations)

    @rw.concurrent(64)
    @rw.idempotent
    def newest_variables(self, have: int) -> Variables | None:
        """Return the newest weights, or None if they have the version `have`."""
        variables = self.view.variables
        if variables.version == have:
            return None
        if self._frozen is None or self._frozen.value is not variables:
            self._frozen = rw.Frozen(variables)
        return cast("Variables", self._frozen)  # the caller gets the value

    @rw.concurrent(64)
    @rw.idempotent
    def report_evaluation(self, scores: EvaluationScores) -> None:
        """Keep the scores of an evaluator; one that comes again is dropped."""
        with self._evaluations_lock:
            if all(scores.version != known.version for known in self._evaluations):
                self._evaluations.append(scores)

    @rw.concurrent(64)
    @rw.idempotent
    def outcome(self) -> TrainingOutcome:
        """Return what was learned so far."""
        view = self.view
        with self._evaluations_lock:
            return TrainingOutcome(view.variables, deepcopy(view.counters), view.digests, tuple(self._evaluations))

    def restore(self) -> None:
        """Go on from the experiment's checkpoint, if there is one; a checkpoint of this program is newer."""
        state = self._checkpoints.load()
        if state is not None:
            self.load_state_dict(state)

    def saved_here(self) -> None:
        """Save what is due, between two steps of the learner."""
        rw.checkpoint_here()
        self._checkpoints.save_if_due(self.state_dict)

    def end(self) -> None:
        """Save the end, and end the program or wait until it is ended."""
        self._checkpoints.save(self.state_dict)
        if rw.stopping():
            return
        self.settle()
        self._ended = True
        if not self._hold:
            rw.stop(f"the experiment has done its {self.assembly.experiment.steps:,} steps")
        rw.wait_for_stop()

    def settle(self) -> None:
        """Wait, after this learner has saved the end, for everything else that the end of the program depends on."""
        return

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluations; subclasses add everything that they depend on."""
        with self._evaluations_lock:
            return {"evaluations": list(self._evaluations)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        with self._evaluations_lock:
            self._evaluations = list(state["evaluations"])


__all__ = ["LearnerNode", "LearnerStatus", "LearnerView"]
