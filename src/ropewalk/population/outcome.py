"""The outcome of an evaluation: a fitness, and further values that some algorithms use."""

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
    """The fitness, which is maximised."""
    behaviour: NDArray[np.float64] | None = None
    """The behaviour of the candidate: a float64 vector of a fixed length.

    It is the behaviour characterisation of novelty search and the measures of quality-diversity.
    """
    steps: int = 0
    """Number of environment steps of the evaluation, for tables and budgets."""
    values: dict[str, float] = field(default_factory=dict[str, float])
    """Further figures by name; tables show the mean of each."""
    observations: Any = None
    """Statistics of observations from `Trial.normalise`; the worker sets it."""
    held: Any = None
    """A reference to a value that stays on the worker's host, such as a trained member; the evaluator sets it."""
    failure: str = ""
    """Why there is no real fitness; `fitness` is then the replacement that the policy for failures chose."""

    @property
    def is_plain(self) -> bool:
        """Whether the outcome consists of its fitness only."""
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
        """Whether the fitness is not NaN; infinities count as a fitness."""
        return not math.isnan(self.fitness)


def outcome_of(returned: Any) -> Outcome:
    """Convert the return value of a fitness function to an outcome.

    Raises:
        TypeError: the value is neither a number nor an `Outcome`.
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
        return float(value.item())  # an array or tensor with one element
    raise TypeError(
        f"a fitness function returned {value!r:.80} of type {type(value).__name__}; return a number to maximise, "
        "or ropewalk.population.Outcome(fitness, behaviour=..., steps=...)"
    )
