"""CMA-ES: a normal distribution whose covariance follows the successful steps; an interface to the `cmaes` library.

Hansen: The CMA Evolution Strategy: A Tutorial, 2016 (https://arxiv.org/abs/1604.00772); Ros, Hansen: A Simple
Modification in CMA-ES Achieving Linear Time and Space Complexity, 2008 (sep-CMA-ES); Nomura, Shibata: cmaes: A Simple
yet Practical Python Library for CMA-ES, 2024 (https://arxiv.org/abs/2402.01373).

Candidates are the parameters themselves. A full covariance is feasible for a few hundred parameters (its decomposition
takes cubic time, on the launcher), so a candidate has a few kilobytes and is sent to one worker; a worker could not
draw it without the matrix. For more parameters use `SNES`, which sends only numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from cmaes import CMA, SepCMA
from numpy.typing import NDArray

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.identity import check_identity
from ropewalk.population.outcome import Outcome

_LARGEST = 1e300
"""Values that the library adds and compares must stay finite."""

Parameters = NDArray[np.float64]


class CMAES(Algorithm[Parameters]):
    """CMA-ES, with a full covariance or only its diagonal.

    It takes a step once any `population` candidates have been told: dropped candidates are replaced by new ones, and
    late ones count like all others. Candidates beyond `population` wait for the next step.

    Args:
        initial: initial mean, of shape (parameters,), or the number of parameters: then zeros.
        population: number of candidates in a generation; defaults to 4 + 3 log(parameters), as in the tutorial.
        sigma: initial step size; about a third of the expected distance to the optimum.
        separable: keep only the diagonal of the covariance: linear time and space.
        bounds: lowest and highest value of each parameter, as an array of shape (parameters, 2).
        adapt_learning_rate: adapt learning rates to noise and many optima (Nomura, Akimoto, Ono 2023,
            https://arxiv.org/abs/2304.03473); requires the full covariance.
        seed: seed of all random numbers.
    """

    def __init__(
        self,
        initial: Any,
        *,
        population: int | None = None,
        sigma: float = 0.5,
        separable: bool = False,
        bounds: Any = None,
        adapt_learning_rate: bool = False,
        seed: int = 0,
    ) -> None:
        mean = _mean(initial)
        super().__init__(4 + int(3 * math.log(mean.size)) if population is None else population, seed)
        if self.population < 4:
            raise ValueError(f"population must be at least 4, not {self.population}: the better half is weighted")
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0, not {sigma}")
        if separable and adapt_learning_rate:
            raise ValueError(
                "adapt_learning_rate needs the full covariance; leave separable or adapt_learning_rate out"
            )
        self.separable = separable
        limits = None if bounds is None else _limits(bounds, mean)
        seed = seed % 2**32  # the range of numpy's legacy generators
        if separable:
            self._library: Any = SepCMA(mean, sigma, bounds=limits, seed=seed, population_size=self.population)
        else:
            self._library = CMA(
                mean, sigma, bounds=limits, seed=seed, population_size=self.population, lr_adapt=adapt_learning_rate
            )
        self._library._funhist_values[:] = 0.0  # the library leaves it uninitialised, and states would differ
        self._adapt_learning_rate = adapt_learning_rate
        self._told: list[tuple[Parameters, float]] = []

    def ask(self, n: int) -> list[Parameters]:
        """Return at most as many candidates as are missing for a step."""
        return [self._library.ask() for _ in range(min(n, self.population - len(self._told)))]

    def tell(self, candidates: Sequence[Parameters], outcomes: Sequence[Outcome]) -> None:
        for parameters, outcome in zip(candidates, outcomes, strict=True):
            cost = -min(max(outcome.fitness, -_LARGEST), _LARGEST)  # the library minimises
            self._told.append((np.array(parameters, np.float64), cost))
        while len(self._told) >= self.population:
            told, self._told = self._told[: self.population], self._told[self.population :]
            self._library.tell(told)
            self.generation += 1

    def incumbent(self) -> Parameters:
        """Return the mean of the distribution."""
        return np.array(self._library.mean, np.float64)

    @property
    def sigma(self) -> float:
        """The current step size."""
        return float(self._library._sigma)

    def figures(self) -> dict[str, float]:
        """Return the step size."""
        return {"sigma": self.sigma}

    @property
    def finished(self) -> bool:
        """Whether the library's stopping criteria are met: steps or differences too small to matter, or divergence."""
        return self.generation > 0 and bool(self._library.should_stop())

    def state_dict(self) -> dict[str, Any]:
        library = {name: _saved(value) for name, value in self._variables().items()}
        _, keys, position, has_gauss, gauss = self._library._rng.get_state()
        return {
            "identity": self._identity(),
            "generation": self.generation,
            "library": library,
            "random": {"keys": np.array(keys), "position": position, "has_gauss": has_gauss, "gauss": gauss},
            "told": [{"parameters": parameters, "cost": cost} for parameters, cost in self._told],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state["identity"], self._identity())
        names = set(self._variables())
        if names != set(state["library"]):
            raise ValueError(
                "this state is of another version of cmaes: "
                f"{sorted(names.symmetric_difference(state['library']))} are "
                "in only one of both; install the version of the run that saved the state"
            )
        self.generation: int = int(state["generation"])
        for name, value in state["library"].items():
            setattr(self._library, name, _saved(value))
        random = state["random"]
        self._library._rng.set_state(
            ("MT19937", random["keys"], random["position"], random["has_gauss"], random["gauss"])
        )
        self._told = [(np.array(each["parameters"]), float(each["cost"])) for each in state["told"]]

    def _variables(self) -> dict[str, Any]:
        return {name: value for name, value in cast(dict[str, Any], vars(self._library)).items() if name != "_rng"}

    def _identity(self) -> dict[str, Any]:
        return {
            "algorithm": "CMAES",
            "parameters": int(self._library.dim),
            "population": self.population,
            "separable": self.separable,
            "adapt_learning_rate": self._adapt_learning_rate,
            "seed": self.seed,
        }


def _mean(initial: Any) -> Parameters:
    if isinstance(initial, int):
        if initial < 1:
            raise ValueError(f"initial must be at least 1 parameter, not {initial}")
        return np.zeros(initial)
    mean = np.array(initial, np.float64)
    if mean.ndim != 1 or not mean.size or not np.isfinite(mean).all():
        raise ValueError(
            "initial must be finite parameters as an array of one dimension, or their number; "
            f"not {mean.dtype} of shape {mean.shape}"
        )
    return mean


def _limits(bounds: Any, mean: Parameters) -> Parameters:
    limits = np.array(bounds, np.float64)
    if limits.shape != (mean.size, 2):
        raise ValueError(f"bounds must have the shape ({mean.size}, 2), lowest and highest, not {limits.shape}")
    if not ((limits[:, 0] < limits[:, 1]) & (limits[:, 0] <= mean) & (mean <= limits[:, 1])).all():
        raise ValueError("bounds must have lowest < highest with the initial mean between them, for each parameter")
    return limits


def _saved(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast(NDArray[Any], value).copy()
    return cast(Any, value).item() if isinstance(value, np.generic) else value
