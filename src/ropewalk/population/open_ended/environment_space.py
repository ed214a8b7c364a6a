"""The interface of environments for POET: the first one, their mutations, and distances between them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Environment = Any
"""A small record: a number, a string, a list, or a dict with string keys of these.

It is sent to the workers with each round, and stored in checkpoints and in the lineage; the fitness function builds the
environment from it.
"""


class EnvironmentSpace(Protocol):
    """The space of all possible environments. Give POET an object with these four methods.

    The result of each method depends only on its arguments, and no method changes them.
    """

    def initial(self) -> Environment:
        """Return the environment with which POET starts: an easy one."""
        ...

    def mutate(self, environment: Any, rng: np.random.Generator) -> Environment:
        """Return a child that differs a little from its parent."""
        ...

    def vector(self, environment: Any) -> NDArray[np.float64]:
        """Return the position of an environment: float64 of a fixed length.

        Euclidean distances between positions measure novelty; distance 0 means the same environment.
        """
        ...

    def describe(self, environment: Any) -> str:
        """Return a short description, such as the label in a lineage."""
        ...
