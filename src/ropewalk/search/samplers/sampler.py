"""`Sampler`: which configuration a new trial gets. One file per sampler.

The search asks with everything that it knows, so that a sampler may be a pure function of it; samplers that keep a
state of their own (Optuna's) are rebuilt on resume by telling them all trials again, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Distribution
from ropewalk.search.described import DescribedByArguments
from ropewalk.search.space import SearchSpace


@dataclass(frozen=True)
class Observed:
    """A trial as a sampler sees it."""

    number: int
    hyperparameters: Mapping[str, Any]
    scores: tuple[float, ...] | None
    """One for each objective, always to be maximised: the trial's last or final report. None: none yet."""
    step: float
    """The step of that report; 0 if there is none."""
    is_under_way: bool
    """Whether it is running, queued or paused: its score may still change."""
    has_failed: bool = False
    intermediate: Mapping[float, float] = field(default_factory=dict[float, float])
    """First objective by step."""
    was_stopped: bool = False
    """Whether the scheduler ended it before its own end; only then is its score one of a smaller budget."""
    suggested: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    """Distributions of those hyperparameters that its function asked for by `suggest_*`, in their order."""


class Sampler(DescribedByArguments, ABC):
    """Chooses configurations."""

    @abstractmethod
    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        """Prepare; called once, before anything else.

        Args:
            space: the space.
            objectives: number of objectives.
            seed: source of all randomness: one seed and one worker give the same sequence of configurations.

        Raises:
            SearchInvalid: this sampler cannot sample that space, or that many objectives.
        """

    @abstractmethod
    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any] | None:
        """Return the configuration of trial `number`, which satisfies the constraints of the space.

        Args:
            number: number of the trial, from 0; each is asked for once, in order.
            trials: all trials with lower numbers.

        Returns:
            Values by dotted name, complete with constants and without hyperparameters that are not active; None if
            there is no further one (a grid is exhausted).
        """

    def suggest(self, number: int, name: str, distribution: Distribution, trials: Sequence[Observed]) -> Any:
        """Return the value of a hyperparameter that is not in the space, when a trial asks for it by name.

        Args:
            number: number of the trial, for which `ask` was called, here or before a resume.
            name: dotted name; each is asked for once in a trial.
            distribution: its distribution.
            trials: all trials known, with that one, which has the values that it has asked for so far.

        Raises:
            SearchInvalid: this sampler needs to know all hyperparameters before it begins.
        """
        raise SearchInvalid(
            f"a trial asked for {name!r} by suggest_*, and {type(self).__name__} samples only what is in the space; "
            "describe the hyperparameter in space=, or use a sampler such as 'random' or 'tpe'",
            parameter=name,
        )

    def tell(self, trial: Observed) -> None:  # samplers that look at `trials` have nothing to do
        """A trial has ended, with or without a score. Called once for each trial, also for those before a resume."""
