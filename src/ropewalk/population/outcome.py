"""What an evaluation gives back: a fitness, and what some algorithms want to know beside it."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Outcome:
    """The result of one evaluation. A fitness function may return a plain number instead."""

    fitness: float
    """To be made large."""
    behaviour: NDArray[np.float64] | None = None
    """What the candidate did, as a vector: the behaviour characterisation of novelty search, the measures of
    quality-diversity."""
    steps: int = 0
    """Environment steps that it took, for tables and budgets."""
    values: dict[str, float] = field(default_factory=dict[str, float])
    """More figures; tables show the mean of each."""
    observations: Any = None
    """Statistics of observations, from `Trial.normalise`; filled in by the worker."""
    held: Any = None
    """What stays with the workers, such as the state of a trained member; filled in by the algorithm's evaluator."""
    failure: str = ""
    """Why there is no true fitness; `fitness` is then what the policy for failures put in its place."""

    @property
    def is_plain(self) -> bool:
        """Whether its fitness is all there is to say."""
        return (
            self.behaviour is None
            and not self.steps
            and not self.values
            and self.observations is None
            and self.held is None
            and not self.failure
        )

    @property
    def has_fitness(self) -> bool:
        """Whether the fitness is a number (infinities are)."""
        return not math.isnan(self.fitness)


def outcome_of(returned: Any) -> Outcome:
    """What a fitness function returned, as an outcome.

    Raises:
        TypeError: it is neither a number nor an `Outcome`.
    """
    if type(returned) is float:
        return Outcome(returned)
    if isinstance(returned, Outcome):
        if returned.behaviour is not None:
            returned.behaviour = np.asarray(returned.behaviour, np.float64).reshape(-1)
        returned.fitness = _number(returned.fitness)
        return returned
    return Outcome(_number(returned))


def _number(value: Any) -> float:
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "size", 0) == 1 or getattr(value, "numel", lambda: 0)() == 1:
        return float(value.item())  # an array or tensor of one number
    raise TypeError(
        f"a fitness function returned {value!r:.80} of type {type(value).__name__}; return a number to be made large, "
        "or ropewalk.population.Outcome(fitness, behaviour=..., steps=...)"
    )
