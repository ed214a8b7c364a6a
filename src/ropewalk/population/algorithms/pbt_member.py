"""Members of population based training: their data in a worker, and the storage of their states.

    launcher                          worker                                          host, or folder
    Interval(member, number,  ──────▶ PBTMember ── .state ◀──────────── get ──────────── state of interval 6
      hyperparameters, where)         train(member, trial): .state = ...
    tell(score, where) ◀───────────── Outcome ── .state ───────────▶ keep ──────────▶ state of interval 7

The launcher handles references to states, never states. With a folder, states are files that outlive every process
(`pbt_states.py`); without one they stay in the memory of the hosts (`object_ref.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import CheckpointCorrupt
from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.algorithms.pbt_states import StateRef, write_file
from ropewalk.population.object_ref import ObjectLost, put
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.trial import Trial

LOST = "state lost: "
"""Prefix of an outcome's failure if the previous state was lost. The log of a run contains failures, so a replay loses
the same states."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A candidate: one interval of one member."""

    member: int
    number: int
    """Number of intervals that this member was given before, with or without success."""
    steps: int
    """Number of steps for which its state was trained before."""
    length: int
    """Number of steps to train."""
    hyperparameters: dict[str, Any]
    state: StateRef | None
    seed: int
    """Seed of the trial that the training function gets."""


class PBTMember:
    """A member as the training function sees it: `train(member, trial)` continues from `.state` and sets it again.

    Attributes:
        number: index of the member in the population, from 0.
        steps: number of steps for which its state was trained so far.
        interval: number of steps to train now.
        intervals: number of intervals that this member was given before this one, with or without success.
        hyperparameters: the hyperparameters of this interval.
    """

    def __init__(
        self,
        number: int,
        steps: int,
        interval: int,
        hyperparameters: Mapping[str, Any],
        at: StateRef | None,
        intervals: int = 0,
    ) -> None:
        self.number = number
        self.intervals = intervals
        self.steps = steps
        self.interval = interval
        self.hyperparameters: dict[str, Any] = dict(hyperparameters)
        self._at = at
        self._is_fetched = at is None
        self._state: Any = None

    @property
    def state(self) -> Any:
        """The state after the last training, None before the first; fetched from its storage when it is first read."""
        if self._at is not None and not self._is_fetched:
            self._state, self._is_fetched = self._at.get(), True
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state, self._at, self._is_fetched = state, None, True

    def copy(self) -> PBTMember:
        """Return a copy with its own copy of the state."""
        copy = PBTMember(self.number, self.steps, self.interval, self.hyperparameters, self._at, self.intervals)
        if self._at is None:
            copy.state = deepcopy(self._state)
        return copy

    def __repr__(self) -> str:
        return f"PBTMember({self.number}, steps={self.steps}, {self.hyperparameters})"


class TrainInterval(Evaluator[Interval]):
    """Trains a member for an interval, and stores its state outside of the launcher.

    Args:
        folder: folder of the states; None keeps them in the memory of the hosts.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def __call__(self, fitness: Fitness, candidate: Interval, trial: Trial) -> Outcome:
        """Train a member; a lost state is reported in the outcome, not raised, because the algorithm handles it.

        Raises:
            ValueError: the function returned a score but set no state.
        """
        at = candidate.state
        member = PBTMember(
            candidate.member, candidate.steps, candidate.length, candidate.hyperparameters, at, candidate.number
        )
        try:
            member.state  # noqa: B018  # fetched here, so that only our own errors are caught
        except (ObjectLost, FileNotFoundError, CheckpointCorrupt) as error:
            why = f"{LOST}that of member {candidate.member} after {candidate.steps} steps; {error}"
            return Outcome(float("-inf"), failure=why)
        outcome = outcome_of(fitness(member, Trial(candidate.seed)))
        if outcome.has_fitness:
            if member.state is None:
                raise ValueError(
                    f"{_name_of(fitness)} left member.state None, so that nobody could go on from what was trained; "
                    "set member.state to it before returning the score (to {} if there is nothing to go on from)"
                )
            outcome.held = self._keep(candidate, member.state)
        return outcome

    def test(self, fitness: Fitness, incumbent: Any, trial: Trial) -> Outcome:
        """Train a copy: each episode starts from the same state, and the incumbent keeps its own."""
        return outcome_of(fitness(incumbent.copy(), trial))

    def _keep(self, candidate: Interval, state: Any) -> StateRef:
        if self._folder is None:
            return put(state)
        return write_file(self._folder, candidate.member, candidate.number, state)


def _name_of(fitness: Fitness) -> str:
    function: Any = getattr(fitness, "_function", fitness)  # a function without a trial parameter is wrapped
    return f"the training function {getattr(function, '__qualname__', type(function).__name__)}"
