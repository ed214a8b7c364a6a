"""How optimisers of other libraries ask and tell: one class for each way, in `DIALECTS`.

    library               asks for                    is told                          makes
    pyribs                a population                objectives, measures             large
    cma                   a population                solutions, values                small
    cmaes                 one, population times       [(solution, value), ...]         small
    nevergrad             one                         one, in any order                small
    EvoTorch, functional  ask(state, popsize)         state = tell(state, x, values)   as it was made
    EvoTorch, searchers   (within a step)             (within a step)                  as the problem says
    DEAP's toolboxes      generate()                  update(population)               as the weight says
    any other             ask(): a population         tell(solutions, values)          as `adapt` is told

No library is imported here: who has such an object has imported it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithms.global_chance import undone_chance
from ropewalk.population.algorithms.pickled import pickled, unpickled

#: Some libraries refuse infinities, and torch's default type ends at 3e38.
_LARGEST = 1e38


class Dialect(ABC):
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
            raise ValueError(f"{_name(optimiser)} {verb}, so maximise must be {self.maximises} or left out")
        own = self.population()
        if population is not None and population != own:
            raise ValueError(f"{_name(optimiser)} has a population of its own; leave population={population} out")

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


class Pyribs(Dialect):
    """`ribs.schedulers.Scheduler`: objectives are made large, measures are the outcome's behaviour."""

    maximises = True

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return _is_of(optimiser, "ribs") and hasattr(optimiser, "emitters")

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
        # One without measures becomes a copy of the worst that has some, so that nothing untrue enters the archive.
        worst = min(known, key=lambda at: values[at])
        rows = [at if behaviours[at] is not None else worst for at in range(len(asked))]
        self._solutions[:] = self._solutions[rows]
        self.optimiser.tell(np.array(values)[rows], np.stack([_known(behaviours[at]) for at in rows]))

    def incumbent(self) -> Any:
        best = self.optimiser.result_archive.best_elite
        return None if best is None else np.array(best["solution"])


class Pycma(Dialect):
    """`cma.CMAEvolutionStrategy`."""

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return _is_of(optimiser, "cma") and hasattr(optimiser, "popsize")

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


class Cmaes(Dialect):
    """`cmaes.CMA` and its kin with one objective; solutions are as its `ask` has them."""

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return _is_of(optimiser, "cmaes") and hasattr(optimiser, "population_size")

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
        # The library's own pickles leave the generator of random numbers out, and half of the covariance, which is
        # symmetric but for its last bits: so all that the object has goes beside it.
        return {**self.__dict__, "all_of_it": self._variables().copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        all_of_it = state.pop("all_of_it")
        vars(self).update(state)
        self._variables().update(all_of_it)

    def _variables(self) -> dict[str, Any]:
        return getattr(self.optimiser, "_cma", self.optimiser).__dict__

    @property
    def _has_margin(self) -> bool:  # it asks for (what to evaluate, what to be told)
        return type(self.optimiser).__name__ == "CMAwM"

    @property
    def finished(self) -> bool:
        return bool(self.optimiser.generation and self.optimiser.should_stop())


class Nevergrad(Dialect):
    """An optimiser of nevergrad: one at a time, told in any order, as many under way as it can have."""

    whole = False

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        super().__init__(optimiser, maximise, None)
        self._population = optimiser.num_workers if population is None else population
        optimiser.enable_pickling()
        optimiser.parametrization.random_state  # noqa: B018  # reading it makes it, from numpy's

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return _is_of(optimiser, "nevergrad") and hasattr(optimiser, "parametrization")

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

    def solution(self, asked: Any) -> Any:
        return asked.value

    def incumbent(self) -> Any:
        return self.optimiser.provide_recommendation().value if self.optimiser.num_tell else None

    @property
    def finished(self) -> bool:
        return self.optimiser.budget is not None and self.optimiser.num_ask >= self.optimiser.budget


class EvoTorchFunctional(Dialect):
    """A state of EvoTorch's functional algorithms, such as `cem(...)`; `optimiser` is always the newest state.

    Any named tuple `FooState` whose module has `foo_ask(state, popsize=...)` and `foo_tell(state, values, evals)`.
    """

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        self.maximises = bool(optimiser.maximize)
        super().__init__(optimiser, maximise, None)
        if population is None:
            raise ValueError(f"{_name(optimiser)} must be told how many to ask for: adapt(state, population=...)")
        self._population = population

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        module, name = sys.modules.get(type(optimiser).__module__), _functional_name(optimiser)
        return bool(name) and hasattr(module, f"{name}_ask") and hasattr(optimiser, "maximize")

    def population(self) -> int | None:
        return getattr(self, "_population", None)

    def _function(self, verb: str) -> Any:
        return getattr(sys.modules[type(self.optimiser).__module__], f"{_functional_name(self.optimiser)}_{verb}")

    def ask(self) -> list[Any]:
        self._values = self._function("ask")(self.optimiser, popsize=self._population)
        if self._values.ndim != 2:
            raise ValueError(
                f"a population of {_name(self.optimiser)} has the shape {tuple(self._values.shape)}: several searches "
                "in one state; adapt and evaluate one state for each"
            )
        return list(_numpy(self._values))

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        evals = self._values.new_tensor(values)
        self.optimiser = self._function("tell")(self.optimiser, self._values, evals)


class _Unevaluated(Exception):
    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch


class EvoTorchSearcher(Dialect):
    """A `SearchAlgorithm` of EvoTorch, which evaluates in the middle of its step.

    A copy takes the step until it needs an evaluation: these are the candidates. When they are told, the searcher
    itself takes the step, with the same random numbers and the values at hand. A step may evaluate several times. The
    problem's own fitness function and actors are not used; if it has evaluation data, they are the behaviour.
    """

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        if optimiser.problem.is_multi_objective:
            raise ValueError(f"{_name(optimiser)} has several objectives; an outcome has one fitness")
        self.maximises = optimiser.problem.objective_sense == "max"
        super().__init__(optimiser, maximise, population)
        self._evaluated: list[tuple[list[float], list[NDArray[np.float64] | None]]] = []

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return _is_of(optimiser, "evotorch") and hasattr(optimiser, "step") and hasattr(optimiser, "problem")

    def ask(self) -> list[Any]:
        batch = self._probe()
        if batch is None:
            raise ValueError(f"a step of {_name(self.optimiser)} evaluates nothing, so there is nothing to ask it for")
        values = batch.values
        return list(_numpy(values)) if hasattr(values, "numpy") else list(values)

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        self._evaluated.append((values, behaviours))
        if self._probe() is None:  # that was its last evaluation
            self._step(self.optimiser)
            self._evaluated = []

    def _probe(self) -> Any:
        """What the next step has to know beyond what was told; None if nothing."""
        with undone_chance():
            try:
                self._step(unpickled(pickled(self.optimiser)))
            except _Unevaluated as unevaluated:
                return unevaluated.batch
        return None

    def _step(self, searcher: Any) -> None:
        told = iter(self._evaluated)

        def evaluate(batch: Any) -> None:
            evaluation = next(told, None)
            if evaluation is None:
                raise _Unevaluated(batch)
            values, behaviours = evaluation
            evals = batch.evals.new_tensor(values)
            if searcher.problem.eval_data_length:
                batch.set_evals(evals, batch.evals.new_tensor(np.stack([_known(each) for each in behaviours])))
            else:
                batch.set_evals(evals)

        problem = searcher.problem
        problem._parallelize, problem._evaluate_all = lambda: None, evaluate
        try:
            searcher.step()
        finally:
            del problem._parallelize, problem._evaluate_all

    @property
    def finished(self) -> bool:
        return bool(self.optimiser.is_terminated)


class DeapToolbox(Dialect):
    """A toolbox of DEAP with `generate` and `update`, such as that of `deap.cma.Strategy`."""

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        if not (hasattr(optimiser, "generate") and hasattr(optimiser, "update")):
            raise ValueError(
                "a toolbox of DEAP asks and tells by generate and update, and this one has not both; where DEAP runs "
                "its own loop (eaSimple and the like), let it evaluate on the pool: toolbox.register('map', pool.map)"
            )
        super().__init__(optimiser, None, population)
        self._maximise = maximise

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return _is_of(optimiser, "deap") and type(optimiser).__name__ == "Toolbox"

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
        if isinstance(asked, list):  # of a class that was made at run time, which workers lack
            return list(cast("list[Any]", asked))
        return asked


class AnyOther(Dialect):
    """Any object whose `ask()` gives a population, and that is told the same with their values."""

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        if maximise is None:
            raise ValueError(
                f"whether {_name(optimiser)} makes values large is not known; say adapt(..., maximise=...)"
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


#: In the order in which they are tried.
DIALECTS: tuple[type[Dialect], ...] = (
    Pyribs, Pycma, Cmaes, Nevergrad, EvoTorchFunctional, EvoTorchSearcher, DeapToolbox, AnyOther
)  # fmt: skip


def _is_of(optimiser: Any, library: str) -> bool:
    """Whether its class, or one that it inherits from, is of a library; a class of the user's own may inherit."""
    return any(each.__module__.split(".")[0] == library for each in type(optimiser).__mro__)


def _name(optimiser: Any) -> str:
    return f"{type(optimiser).__module__.split('.')[0]}'s {type(optimiser).__name__}"


def _functional_name(optimiser: Any) -> str:
    name = type(optimiser).__name__
    return name[: -len("State")].lower() if hasattr(optimiser, "_fields") and name.endswith("State") else ""


def _numpy(tensor: Any) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()


def _known(behaviour: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if behaviour is None:
        raise ValueError("the optimiser must know what a candidate did; return Outcome(fitness, behaviour)")
    return behaviour
