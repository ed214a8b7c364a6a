"""Adapters for EvoTorch: functional algorithms ask and tell a state, searchers evaluate within a step.

Toklu et al.: EvoTorch: Scalable Evolutionary Computation in Python, 2023 (https://arxiv.org/abs/2302.12600). Torch is
not imported here: tensors are created from those of the user's object.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithms.adapter import Adapter, is_of, name_of, required
from ropewalk.population.algorithms.global_chance import undone_chance
from ropewalk.population.algorithms.pickled import pickled, unpickled


class EvoTorchFunctional(Adapter):
    """A state of EvoTorch's functional algorithms, such as `cem(...)`; `optimiser` is always the newest state.

    It works with any named tuple `FooState` whose module has `foo_ask(state, popsize=...)` and
    `foo_tell(state, values, evals)`.
    """

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        self.maximises = bool(optimiser.maximize)
        super().__init__(optimiser, maximise, None)
        if population is None:
            raise ValueError(f"{name_of(optimiser)} must be told how many to ask for: adapt(state, population=...)")
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
                f"a population of {name_of(self.optimiser)} has the shape {tuple(self._values.shape)}: several "
                "searches in one state; adapt and evaluate one state for each"
            )
        return list(_numpy(self._values))

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        evals = self._values.new_tensor(values)
        self.optimiser = self._function("tell")(self.optimiser, self._values, evals)


class _Unevaluated(Exception):
    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch


class EvoTorchSearcher(Adapter):
    """A `SearchAlgorithm` of EvoTorch, which evaluates in the middle of its step.

    A copy runs the step until it needs an evaluation: its solutions are the candidates. When they are told, the
        searcher
    itself runs the step, with the same random numbers and the known values. A step may evaluate several times. The
    problem's own fitness function and actors are not used; its evaluation data, if it has any, are filled from the
    behaviours.
    """

    def __init__(self, optimiser: Any, maximise: bool | None, population: int | None) -> None:
        if optimiser.problem.is_multi_objective:
            raise ValueError(f"{name_of(optimiser)} has several objectives; an outcome has one fitness")
        self.maximises = optimiser.problem.objective_sense == "max"
        super().__init__(optimiser, maximise, population)
        self._evaluated: list[tuple[list[float], list[NDArray[np.float64] | None]]] = []

    @classmethod
    def speaks(cls, optimiser: Any) -> bool:
        return is_of(optimiser, "evotorch") and hasattr(optimiser, "step") and hasattr(optimiser, "problem")

    def ask(self) -> list[Any]:
        batch = self._probe()
        if batch is None:
            raise ValueError(
                f"a step of {name_of(self.optimiser)} evaluates nothing, so there is nothing to ask it for"
            )
        values = batch.values
        return list(_numpy(values)) if hasattr(values, "numpy") else list(values)

    def tell(self, asked: list[Any], values: list[float], behaviours: list[NDArray[np.float64] | None]) -> None:
        self._evaluated.append((values, behaviours))
        if self._probe() is None:  # the step needs no further evaluation
            self._step(self.optimiser)
            self._evaluated = []

    def _probe(self) -> Any:
        """Return the solutions whose values the next step needs beyond those that are known; None if it needs none."""
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
                batch.set_evals(evals, batch.evals.new_tensor(np.stack([required(each) for each in behaviours])))
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


def _functional_name(optimiser: Any) -> str:
    name = type(optimiser).__name__
    return name[: -len("State")].lower() if hasattr(optimiser, "_fields") and name.endswith("State") else ""


def _numpy(tensor: Any) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()
