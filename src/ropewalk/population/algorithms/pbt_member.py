"""Members of a population that is trained: what a worker gets of one, and where its state stays.

    launcher                          worker                                          host, or folder
    Interval(member, number,  ──────▶ PBTMember ── .state ◀──────────── get ──────────── state of interval 6
      hyperparameters, where)         train(member, trial): .state = ...
    tell(score, where) ◀───────────── Outcome ── .state ───────────▶ keep ──────────▶ state of interval 7

The launcher sees where states lie, never states. With a folder they are files that outlive every process
(`pbt_states.py`); else they stay in the memory of the hosts (`object_ref.py`).
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

#: What the failure of an outcome begins with if the old state could not be found. The log of a run has failures, so a
#: replay loses the same states.
LOST = "state lost: "


@dataclass(frozen=True, slots=True)
class Interval:
    """A candidate: one interval of one member."""

    member: int
    number: int
    """How many intervals this member was given before, with or without success."""
    steps: int
    """Steps that its state was trained for before."""
    length: int
    """Steps to train it for."""
    hyperparameters: dict[str, Any]
    state: StateRef | None
    seed: int
    """Of the trial that the training function gets."""


class PBTMember:
    """A member as the training function sees it: `train(member, trial)` goes on from `.state` and sets it anew.

    Attributes:
        number: which one of the population; 0 is the first.
        steps: how many its state was trained for so far.
        interval: how many to train it for now.
        hyperparameters: what to train it with.
    """

    def __init__(self, number: int, steps: int, interval: int, hyperparameters: Mapping[str, Any], at: StateRef | None):
        self.number = number
        self.steps = steps
        self.interval = interval
        self.hyperparameters: dict[str, Any] = dict(hyperparameters)
        self._at = at
        self._is_fetched = at is None
        self._state: Any = None

    @property
    def state(self) -> Any:
        """What training left, None before the first time; fetched from where it lies when it is first read."""
        if self._at is not None and not self._is_fetched:
            self._state, self._is_fetched = self._at.get(), True
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state, self._at, self._is_fetched = state, None, True

    def copy(self) -> PBTMember:
        """One with a state of its own, as it was left by training."""
        copy = PBTMember(self.number, self.steps, self.interval, self.hyperparameters, self._at)
        if self._at is None:
            copy.state = deepcopy(self._state)
        return copy

    def __repr__(self) -> str:
        return f"PBTMember({self.number}, steps={self.steps}, {self.hyperparameters})"


class TrainInterval(Evaluator[Interval]):
    """Trains a member for an interval, and keeps its state outside of the launcher.

    Args:
        folder: for states; None leaves them in the memory of the hosts.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def __call__(self, fitness: Fitness, candidate: Interval, trial: Trial) -> Outcome:
        """Train; a state that is nowhere any more is an outcome, not an error: the algorithm knows what to do.

        Raises:
            ValueError: there is a score, but no state that it could be of.
        """
        member = PBTMember(
            candidate.member, candidate.steps, candidate.length, candidate.hyperparameters, candidate.state
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
        """Train a copy: each episode begins with the same state, and the incumbent keeps it."""
        return outcome_of(fitness(incumbent.copy(), trial))

    def _keep(self, candidate: Interval, state: Any) -> StateRef:
        if self._folder is None:
            return put(state)
        return write_file(self._folder, candidate.member, candidate.number, state)


def _name_of(fitness: Fitness) -> str:
    function: Any = getattr(fitness, "_function", fitness)  # one that does not take the trial is wrapped
    return f"the training function {getattr(function, '__qualname__', type(function).__name__)}"
