"""What POET has to know of environments: where to begin, how they vary, and how far they are from each other."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Environment = Any
"""A small record: a number, a string, a list, or a dict with string keys of these. It travels to the workers with
each round, and lies in checkpoints and in the lineage; the fitness function builds the environment from it."""


class EnvironmentSpace(Protocol):
    """All environments that there could be. Give POET an object with these four methods.

    Each is a function of its arguments and of nothing else, and none changes them.
    """

    def initial(self) -> Environment:
        """The environment that POET starts from: an easy one."""
        ...

    def mutate(self, environment: Any, rng: np.random.Generator) -> Environment:
        """A child that differs a little from its parent."""
        ...

    def vector(self, environment: Any) -> NDArray[np.float64]:
        """Where it lies among others: Euclidean distances between these measure novelty, and 0 means the same."""
        ...

    def describe(self, environment: Any) -> str:
        """A few words for people, such as the label in a lineage."""
        ...
