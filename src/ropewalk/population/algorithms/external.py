"""Optimisers of other libraries in `evaluate`: any object that asks and tells.

    adapt(optimiser) ─▶ Outside ── adapter.ask ──▶ (number, solution) ─▶ fitness(solution) on the workers
                           ▲           │ keeps the library's own objects, by number
                           └── adapter.tell ◀── in the order of asking, when a whole population has been told

The decisions of an optimiser depend on its own seed. Fitness is maximised here, and negated for libraries that
minimise. `adapters` defines the protocol of each library; pyribs, cma, cmaes, nevergrad, EvoTorch and DEAP are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Algorithm, Evaluator, Fitness
from ropewalk.population.algorithms.adapter import Adapter
from ropewalk.population.algorithms.adapters import ADAPTERS
from ropewalk.population.algorithms.global_chance import GlobalChance
from ropewalk.population.algorithms.pickled import pickled, unpickled
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.trial import Trial

Numbered: TypeAlias = tuple[int, Any]
"""A candidate: its number, and an array, numbers, or bytes, which are a pickle of any other object."""


def adapt(
    optimiser: Any, maximise: bool | None = None, *, population: int | None = None, seed: int | None = None
) -> Algorithm[Any]:
    """Turn an optimiser of another library into an algorithm; `evaluate` does so itself for any object that is not one.

    Args:
        optimiser: a scheduler of pyribs; `cma.CMAEvolutionStrategy`; `cmaes.CMA` and similar classes; an optimiser of
            nevergrad; a state of EvoTorch's functional algorithms, or one of its searchers; a toolbox of DEAP with
            `generate` and `update`; any object with `ask()`, which returns a population, and `tell(solutions, values)`.
            It is used in place until a state is loaded: then `Outside.optimiser` is a new object.
        maximise: whether the optimiser maximises; required only if its library is not known.
        population: number of candidates in a generation, if the optimiser does not define it: for nevergrad (by default
            its number of workers) and EvoTorch's functional algorithms.
        seed: seed of the evaluations, and of the process-wide generators (`random`, `numpy.random`, torch) as the
            optimiser sees them; None starts from their current states. Generators with a seed of their own are not
            affected.

    Returns:
        The algorithm.

    Raises:
        TypeError: the object does not ask and tell.
        ValueError: the arguments do not fit the optimiser.
    """
    if isinstance(optimiser, Algorithm):
        return cast(Algorithm[Any], optimiser)
    for dialect in ADAPTERS:
        if dialect.speaks(optimiser):
            return Outside(dialect(optimiser, maximise, population), seed)
    raise TypeError(
        f"evaluate takes an Algorithm, or an optimiser that asks and tells, not {optimiser!r:.80} of type "
        f"{type(optimiser).__name__}, which has no ask and tell; those of pyribs, cma, cmaes, nevergrad, EvoTorch and "
        "DEAP (a toolbox with generate and update) are known"
    )


class OutsideEvaluator(Evaluator[Numbered]):
    """Passes the solution to the fitness function."""

    def __call__(self, fitness: Fitness, candidate: Numbered, trial: Trial) -> Outcome:
        return outcome_of(fitness(_unpacked(candidate[1]), trial))


class Outside(Algorithm[Numbered]):
    """An optimiser of another library. Most must be told a whole population at once.

    Such an optimiser continues only when each candidate was told or dropped; a dropped candidate counts as the worst
    that was told. If all candidates of a population are dropped, they are asked for again. The state is a pickle of the
    optimiser, so objects that it refers to by name, such as classes that DEAP creates, must exist when it is loaded.

    Args:
        dialect: the adapter, with the optimiser in it.
        seed: see `adapt`.
    """

    def __init__(self, dialect: Adapter, seed: int | None) -> None:
        super().__init__(1, 0 if seed is None else seed)
        self._dialect = dialect
        self._chance = GlobalChance(seed)
        self._asked: dict[int, Any] = {}  # the current population, or the candidates under way
        self._waiting: list[int] = []  # numbers of these that were not handed out yet
        self._told: dict[int, Outcome] = {}
        self._dropped: set[int] = set()
        self._num_asked = self._num_told = 0
        self._best: tuple[float, Any] | None = None
        self._worst: float | None = None
        """The least fitness that was told."""
        population = dialect.population()
        if population is None:
            self._ask_for_population()
        else:
            self.population = population

    @property
    def optimiser(self) -> Any:
        """The current object of the other library."""
        return self._dialect.optimiser

    @property
    def archive(self) -> Any:
        """The archive of the optimiser, if it has one."""
        return self.optimiser.archive

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, n: int) -> list[Numbered]:
        """Return the rest of the population, or a new one when all candidates of the last were told or dropped."""
        if not self._dialect.whole:
            self._ask_for_single_ones(n)
        elif not self._asked:
            self._ask_for_population()
        given, self._waiting = self._waiting[:n], self._waiting[n:]
        return [(number, _packed(self._dialect.solution(self._asked[number]))) for number in given]

    def _ask_for_population(self) -> None:
        with self._chance:
            asked = self._dialect.ask()
        self._take(asked)
        self.population = len(asked)

    def _ask_for_single_ones(self, n: int) -> None:
        with self._chance:
            while len(self._waiting) < n and (asked := self._dialect.ask()):
                self._take(asked)

    def _take(self, asked: list[Any]) -> None:
        numbers = range(self._num_asked, self._num_asked + len(asked))
        self._asked.update(zip(numbers, asked, strict=True))
        self._waiting.extend(numbers)
        self._num_asked += len(asked)

    # --- telling ------------------------------------------------------------------------------------------------------

    def tell(self, candidates: Sequence[Numbered], outcomes: Sequence[Outcome]) -> None:
        """Pass outcomes to the optimiser, immediately or when their population is complete."""
        for (number, _), outcome in zip(candidates, outcomes, strict=True):
            if number not in self._asked or number in self._told:
                raise ValueError(f"candidate {number} is not under way; tell what was asked for, and once")
            self._told[number] = outcome
            self._worst = outcome.fitness if self._worst is None else min(self._worst, outcome.fitness)
            if self._best is None or outcome.fitness > self._best[0]:
                self._best = outcome.fitness, self._dialect.solution(self._asked[number])
        self._pass_on()

    def drop(self, candidates: Sequence[Numbered]) -> None:
        """Continue without these candidates."""
        if self._dialect.whole:
            self._dropped.update(number for number, _ in candidates)
            self._pass_on()
            return
        worst = self._dialect.value(-math.inf if self._worst is None else self._worst)
        for number, _ in candidates:
            if number in self._asked:
                with self._chance:
                    self._dialect.drop(self._asked.pop(number), worst)

    def _pass_on(self) -> None:
        if not self._dialect.whole:
            self._tell([(self._asked.pop(number), outcome) for number, outcome in self._told.items()])
        elif len(self._told) + len(self._dropped) == len(self._asked):
            if self._told:
                lost = _lost(list(self._told.values()))
                self._tell([(asked, self._told.get(number, lost)) for number, asked in self._asked.items()])
                self._asked = {}
            else:
                self._waiting = list(self._asked)
            self._dropped = set()
        else:
            return
        self._told = {}

    def _tell(self, told: list[tuple[Any, Outcome]]) -> None:
        if not told:
            return
        values = [self._dialect.value(outcome.fitness) for _, outcome in told]
        with self._chance:
            self._dialect.tell([asked for asked, _ in told], values, [outcome.behaviour for _, outcome in told])
        self._num_told += len(told)
        self.generation = self.generation + 1 if self._dialect.whole else self._num_told // self.population

    # --- what it is ---------------------------------------------------------------------------------------------------

    def evaluator(self) -> Evaluator[Numbered]:
        """Return the evaluator, which passes the solution to the fitness function."""
        return _EVALUATOR

    def incumbent(self) -> Any:
        """Return the library's recommendation; if it has none, the best candidate that it was told."""
        with self._chance:
            recommended = self._dialect.incumbent()
        if recommended is None and self._best is not None:
            return self._best[1]
        return recommended

    @property
    def finished(self) -> bool:
        """Whether the optimiser's stopping criterion is met, and all that it asked for was told or dropped."""
        # A budget counts what was asked for; the last candidates are to be evaluated too.
        return self._dialect.finished and (self._dialect.whole or not self._asked)

    def state_dict(self) -> dict[str, Any]:
        """Return a pickle of the optimiser and of the candidates under way, which are its own objects."""
        everything = (self._dialect, self._chance, self._asked, self._best)
        try:
            data = pickled(everything)
        except Exception as error:  # pickling the objects of a library may raise any exception
            raise TypeError(
                f"{_kind(self.optimiser)} cannot be pickled, so there is no checkpoint of it: {error}; see what it "
                "refers to (open files, locks), or evaluate without checkpoint="
            ) from error
        return {
            "algorithm": "Outside",
            "optimiser": _kind(self.optimiser),
            "pickle": data,
            "waiting": list(self._waiting),
            "told": {str(number): _saved(outcome) for number, outcome in self._told.items()},
            "dropped": sorted(self._dropped),
            "population": self.population,
            "seed": self.seed,
            "num_asked": self._num_asked,
            "num_told": self._num_told,
            "worst": self._worst,
            "generation": self.generation,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`, with its optimiser. Load only trusted states: they contain a pickle."""
        if state.get("optimiser") != _kind(self.optimiser):
            raise ValueError(f"the state is of {state.get('optimiser')}, and this optimiser is {_kind(self.optimiser)}")
        self._dialect, self._chance, self._asked, self._best = unpickled(state["pickle"])
        self._waiting = [int(number) for number in state["waiting"]]
        self._told = {int(number): Outcome(**outcome) for number, outcome in state["told"].items()}
        self._dropped = set(state["dropped"])
        self.population, self.seed = int(state["population"]), int(state["seed"])
        self._num_asked, self._num_told = int(state["num_asked"]), int(state["num_told"])
        self._worst = state.get("worst")  # states from before there was one have none
        self.generation = int(state["generation"])


_EVALUATOR = OutsideEvaluator()


def _lost(told: list[Outcome]) -> Outcome:
    """Return the outcome in place of a dropped candidate: the least fitness, and no behaviour."""
    return Outcome(min(outcome.fitness for outcome in told))


def _packed(solution: Any) -> Any:
    if isinstance(solution, np.ndarray):
        array = cast(NDArray[Any], solution)
        return pickled(array) if array.dtype.hasobject else array.copy()
    if isinstance(solution, int | float | str):
        return solution
    if isinstance(solution, list) and all(type(each) in (int, float) for each in cast("list[Any]", solution)):
        return cast("list[Any]", solution)
    return pickled(solution)


def _unpacked(solution: Any) -> Any:
    return unpickled(solution) if isinstance(solution, bytes) else solution


def _kind(optimiser: Any) -> str:
    return f"{type(optimiser).__module__}.{type(optimiser).__qualname__}"


def _saved(outcome: Outcome) -> dict[str, Any]:
    return {"fitness": outcome.fitness, "behaviour": outcome.behaviour}
