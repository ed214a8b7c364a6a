"""The interface between the loop and an optimiser of another library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 1e38
"""Some libraries reject infinities, and torch's default dtype ends at 3e38."""


class Adapter(ABC):
    """Adapts one optimiser. The adapter is pickled as a whole, including the optimiser.

    Args:
        optimiser: the object of the other library.
        maximise: whether the optimiser maximises; None if its library defines it.
        population: number of candidates in a generation; None if the optimiser defines it.
    """

    whole = True
    """Whether the optimiser has to be told a whole population at once."""
    maximises = False

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        self.optimiser = optimiser
        if maximise is not None and maximise != self.maximises:
            verb = "maximises" if self.maximises else "minimises"
            raise ValueError(f"{name_of(optimiser)} {verb}, so maximise must be {self.maximises} or left out")
        own = self.population()
        if population is not None and population != own:
            raise ValueError(f"{name_of(optimiser)} has a population of its own; leave population={population} out")

    @classmethod
    @abstractmethod
    def speaks(cls, optimiser: Any) -> bool:
        """Whether this adapter is for the optimiser."""

    def population(self) -> int | None:
        """Return the number of candidates per ask, if it is known before the first ask; else None."""
        return None

    @abstractmethod
    def ask(self) -> list[Any]:
        """Ask the optimiser for a population, or for one candidate if `whole` is false; `tell` gets them back."""

    @abstractmethod
    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        """Tell the optimiser the objects that `ask` returned, and their values with the sign that it expects."""

    def drop(self, asked: Any, worst: float) -> None:  # noqa: B027  (most can do without)
        """Note that an object that `ask` returned will never be told; called only where `whole` is false.

        Args:
            asked: the object.
            worst: the worst value that was told so far, with the sign that the optimiser expects.
        """

    def solution(self, asked: Any) -> Any:
        """Return the argument of the fitness function for an object that `ask` returned."""
        return asked

    def incumbent(self) -> Any:
        """Return the optimiser's own recommendation; None for the best candidate that it was told."""
        return None

    @property
    def finished(self) -> bool:
        """Whether the optimiser has met its own stopping criterion."""
        return False

    def value(self, fitness: float) -> float:
        """Convert a fitness to the optimiser's sign, and make it finite."""
        return float(np.clip(fitness if self.maximises else -fitness, -_LARGEST, _LARGEST))


def is_of(optimiser: Any, library: str) -> bool:
    """Whether the class of an optimiser, or one of its base classes, is from a library.

    A class of the user may inherit from a class of the library.
    """
    return any(each.__module__.split(".")[0] == library for each in type(optimiser).__mro__)


def name_of(optimiser: Any) -> str:
    """Return the library and class of an optimiser, for errors."""
    return f"{type(optimiser).__module__.split('.')[0]}'s {type(optimiser).__name__}"


def required(behaviour: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the behaviour of an outcome; raise ValueError if it has none."""
    if behaviour is None:
        raise ValueError("the optimiser must know what a candidate did; return Outcome(fitness, behaviour)")
    return behaviour
