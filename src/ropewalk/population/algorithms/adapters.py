"""Adapters for optimisers of other libraries: one class for each protocol of ask and tell, in `ADAPTERS`.

    library               asks for                    is told                          direction
    pyribs                a population                objectives, measures             maximises
    cma                   a population                solutions, values                minimises
    cmaes                 one, population times       [(solution, value), ...]         minimises
    nevergrad             one                         one, in any order                minimises
    EvoTorch, functional  ask(state, popsize)         state = tell(state, x, values)   as it was created
    EvoTorch, searchers   (within a step)             (within a step)                  as the problem defines
    DEAP's toolboxes      generate()                  update(population)               as the weight defines
    any other             ask(): a population         tell(solutions, values)          as given to `adapt`

No library is imported here: a program that has such an object has imported it.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithms.adapter import Adapter, is_of, name_of, required
from ropewalk.population.algorithms.evotorch_adapters import EvoTorchFunctional, EvoTorchSearcher

_MOST_LOSS = 1e20
"""nevergrad warns of losses above 5e20, and reduces them."""


class Pyribs(Adapter):
    """`ribs.schedulers.Scheduler`: objectives are maximised, and measures are the behaviour of the outcome."""

    maximises = True

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return is_of(optimiser, "ribs") and hasattr(optimiser, "emitters")

    def population(self) -> int | None:
        sizes = [getattr(emitter, "batch_size", None) for emitter in self.optimiser.emitters]
        return None if None in sizes else sum(map(int, filter(None, sizes)))

    def ask(self) -> list[Any]:
        self._solutions: NDArray[Any] = self.optimiser.ask()
        return list(self._solutions)  # views

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        known = [at for at, behaviour in enumerate(behaviours) if behaviour is not None]
        if not known:
            raise ValueError(
                "pyribs must know what a candidate did, and no evaluation of this population said so; return "
                "Outcome(fitness, behaviour) with the measures as behaviour"
            )
        # A solution without measures becomes a copy of the worst one that has some, so the archive gets no false entry.
        worst = min(known, key=lambda at: values[at])
        rows = [at if behaviours[at] is not None else worst for at in range(len(asked))]
        self._solutions[:] = self._solutions[rows]
        self.optimiser.tell(np.array(values)[rows], np.stack([required(behaviours[at]) for at in rows]))

    def incumbent(self) -> Any:
        best = self.optimiser.result_archive.best_elite
        return None if best is None else np.array(best["solution"])


class Pycma(Adapter):
    """`cma.CMAEvolutionStrategy`."""

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return is_of(optimiser, "cma") and hasattr(optimiser, "popsize")

    def population(self) -> int | None:
        return int(self.optimiser.popsize)

    def ask(self) -> list[Any]:
        return list(self.optimiser.ask())

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        self.optimiser.tell(asked, values)

    def incumbent(self) -> Any:
        return np.array(self.optimiser.result.xfavorite) if self.optimiser.countiter else None

    @property
    def finished(self) -> bool:
        return bool(self.optimiser.countiter and self.optimiser.stop())


class Cmaes(Adapter):
    """`cmaes.CMA` and similar classes with one objective; solutions are arrays as its `ask` returns them."""

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return is_of(optimiser, "cmaes") and hasattr(optimiser, "population_size")

    def population(self) -> int | None:
        return int(self.optimiser.population_size)

    def ask(self) -> list[Any]:
        return [self.optimiser.ask() for _ in range(self.optimiser.population_size)]

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        told = [each[1] for each in asked] if self._has_margin else asked
        self.optimiser.tell(list(zip(told, values, strict=True)))

    def solution(self, asked: Any) -> Any:
        return asked[0] if self._has_margin else asked

    def __getstate__(self) -> dict[str, Any]:
        # The library's own pickles omit the random number generator, and half of the covariance, which is symmetric
        # except for its last bits. Therefore all attributes of the object are pickled separately.
        return {**self.__dict__, "all_of_it": self._variables().copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        all_of_it = state.pop("all_of_it")
        vars(self).update(state)
        self._variables().update(all_of_it)

    def _variables(self) -> dict[str, Any]:
        return getattr(self.optimiser, "_cma", self.optimiser).__dict__

    @property
    def _has_margin(self) -> bool:  # such an `ask` returns (solution to evaluate, solution to tell)
        return type(self.optimiser).__name__ == "CMAwM"

    @property
    def finished(self) -> bool:
        return bool(self.optimiser.generation and self.optimiser.should_stop())


class Nevergrad(Adapter):
    """An optimiser of nevergrad: asked one at a time, told in any order, with as many under way as it allows."""

    whole = False

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        super().__init__(optimiser, maximise, None)
        self._population = optimiser.num_workers if population is None else population
        optimiser.enable_pickling()
        optimiser.parametrization.random_state  # noqa: B018  # reading it makes it, from numpy's

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return is_of(optimiser, "nevergrad") and hasattr(optimiser, "parametrization")

    def population(self) -> int | None:
        return getattr(self, "_population", None)

    def ask(self) -> list[Any]:
        optimiser = self.optimiser
        under_way = optimiser.num_ask - optimiser.num_tell
        if self.finished or (optimiser.no_parallelization and under_way):
            return []
        return [optimiser.ask()]

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        for candidate, value in zip(asked, values, strict=True):
            self.optimiser.tell(candidate, value)

    def value(self, fitness: float) -> float:
        return float(np.clip(super().value(fitness), -_MOST_LOSS, _MOST_LOSS))

    def drop(self, asked: Any, worst: float) -> None:
        if self.optimiser.no_parallelization:  # it asks for nothing else before it is told
            self.optimiser.tell(asked, worst)

    def solution(self, asked: Any) -> Any:
        return asked.value

    def incumbent(self) -> Any:
        return self.optimiser.provide_recommendation().value if self.optimiser.num_tell else None

    @property
    def finished(self) -> bool:
        return self.optimiser.budget is not None and self.optimiser.num_ask >= self.optimiser.budget


class DeapToolbox(Adapter):
    """A toolbox of DEAP with `generate` and `update`, such as that of `deap.cma.Strategy`."""

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        if not (hasattr(optimiser, "generate") and hasattr(optimiser, "update")):
            raise ValueError(
                "a toolbox of DEAP asks and tells by generate and update, and this one lacks one of them; where DEAP "
                "runs its own loop (eaSimple and the like), let it evaluate on the pool: "
                "toolbox.register('map', pool.map)"
            )
        super().__init__(optimiser, None, population)
        self._maximise = maximise

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return is_of(optimiser, "deap") and type(optimiser).__name__ == "Toolbox"

    def ask(self) -> list[Any]:
        individuals = list(self.optimiser.generate())
        weights = individuals[0].fitness.weights
        if len(weights) != 1:
            raise ValueError(f"the individuals have {len(weights)} objectives; an outcome has one fitness")
        self.maximises = weights[0] > 0
        if self._maximise not in (None, self.maximises):
            raise ValueError(
                f"the individuals' weight is {weights[0]}, so maximise must be {self.maximises} or left out"
            )
        return individuals

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        for individual, value in zip(asked, values, strict=True):
            individual.fitness.values = (value,)
        self.optimiser.update(asked)

    def solution(self, asked: Any) -> Any:
        if isinstance(asked, np.ndarray):
            return np.array(cast(Any, asked))
        if isinstance(asked, list):  # its class was created at run time and does not exist in workers
            return list(cast("list[Any]", asked))
        return asked


class AnyOther(Adapter):
    """Any object whose `ask()` returns a population, and that is told the same population with its values."""

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        if maximise is None:
            raise ValueError(
                f"whether {name_of(optimiser)} makes values large is not known; say adapt(..., maximise=...)"
            )
        self.maximises = maximise
        super().__init__(optimiser, maximise, population)

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return callable(getattr(optimiser, "ask", None)) and callable(getattr(optimiser, "tell", None))

    def ask(self) -> list[Any]:
        self._population = self.optimiser.ask()
        return list(self._population)

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        self.optimiser.tell(self._population, np.array(values))


ADAPTERS: tuple[type[Adapter], ...] = (
    Pyribs, Pycma, Cmaes, Nevergrad, EvoTorchFunctional, EvoTorchSearcher, DeapToolbox, AnyOther
)  # fmt: skip
"""All adapters, in the order in which they are tried."""
