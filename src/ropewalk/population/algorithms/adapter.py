"""What the loop needs of an optimiser of another library: its dialect, when it asks and tells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Some libraries refuse infinities, and torch's default type ends at 3e38.
_LARGEST = 1e38


class Adapter(ABC):
    """One optimiser, spoken to in its own way. It is pickled whole, with the optimiser in it.

    Args:
        optimiser: the object of the other library.
        maximise: whether it makes values large; None if its library says so.
        population: how many candidates a generation has; None if the optimiser says so.
    """

    whole = True
    """Whether it has to be told of a whole population at once."""
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
        """Whether this is its dialect."""

    def population(self) -> int | None:
        """How many candidates come at once, if that is known before the first ask."""
        return None

    @abstractmethod
    def ask(self) -> list[Any]:
        """A population, or one candidate if it need not be told of a whole one. Values for `tell`."""

    @abstractmethod
    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        """What `ask` returned (the same objects), and the values, with the sign that the optimiser expects."""

    def solution(self, asked: Any) -> Any:
        """What the fitness function is called with for one that `ask` returned."""
        return asked

    def incumbent(self) -> Any:
        """What the optimiser itself would give now; None for the best that it was told of."""
        return None

    @property
    def finished(self) -> bool:
        """Whether it would stop."""
        return False

    def value(self, fitness: float) -> float:
        """A fitness with the optimiser's sign, finite."""
        return float(np.clip(fitness if self.maximises else -fitness, -_LARGEST, _LARGEST))


def is_of(optimiser: Any, library: str) -> bool:
    """Whether its class, or one that it inherits from, is of a library; a class of the user's own may inherit."""
    return any(each.__module__.split(".")[0] == library for each in type(optimiser).__mro__)


def name_of(optimiser: Any) -> str:
    """Its library and class, for errors."""
    return f"{type(optimiser).__module__.split('.')[0]}'s {type(optimiser).__name__}"


def required(behaviour: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The behaviour of an outcome, which has to have one."""
    if behaviour is None:
        raise ValueError("the optimiser must know what a candidate did; return Outcome(fitness, behaviour)")
    return behaviour
