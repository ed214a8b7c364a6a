"""`Sampler`: which configuration a new trial gets. One file per sampler.

The search asks with everything that it knows, so that a sampler may be a pure function of it; samplers that keep a
state of their own (Optuna's) are rebuilt on resume by telling them all trials again, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


class Sampler(ABC):
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
            Values by name; None if there is no further one (a grid is exhausted).
        """

    def tell(self, trial: Observed) -> None:
        """A trial has ended, with or without a score. Called once for each trial, also for those before a resume."""
