"""SNES: a normal distribution with one width per parameter, moved along the natural gradient of the fitness.

Schaul, Glasmachers, Schmidhuber: High Dimensions and Heavy Tails for Natural Evolution Strategies, 2011
(https://doi.org/10.1145/2001576.2001692), algorithm 2; Wierstra et al.: Natural Evolution Strategies, JMLR 2014
(https://jmlr.org/papers/v15/wierstra14a.html), sections 3.1 and 3.5. Its utilities and learning rates are the defaults.

    candidate ─▶ mean + width · draw ─▶ fitness ─▶ utility u ─▶ mean  += η · width · Σ u·z
                                                                width *= exp(η′/2 · Σ u·(z² - 1))

The draws z are slices of a noise table, and both sums are computed in fixed blocks on the pool, as in OpenAI-ES: only
numbers and fitnesses are exchanged. The mean is float64 on the launcher, and is sent as float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.numbered import EvaluatedBatch, NumberedAlgorithm
from ropewalk.population.perturbed import Perturbed, start_parameters
from ropewalk.population.ranks import log_utilities
from ropewalk.population.weighted_sum import weighted_sums


class SNES(NumberedAlgorithm):
    """Separable natural evolution strategies.

    Schaul et al., High Dimensions and Heavy Tails for Natural Evolution Strategies, 2011
    (https://doi.org/10.1145/2001576.2001692), algorithm 2.

    Args:
        initial: initial mean, of shape (parameters,), or the number of parameters: then zeros.
        population: number of candidates in a generation; defaults to 4 + 3 log(parameters), as in the paper.
        sigma: initial widths: one number, or one for each parameter.
        learning_rate: learning rate of the mean.
        width_learning_rate: learning rate of the widths; defaults to (3 + log(parameters)) / (5 sqrt(parameters)), as
            in the paper.
        max_age: as in `OpenAIES`.
        noise: as in `OpenAIES`.
        seed: seed of the noise.
    """

    def __init__(
        self,
        initial: Any,
        *,
        population: int | None = None,
        sigma: Any = 1.0,
        learning_rate: float = 1.0,
        width_learning_rate: float | None = None,
        max_age: int = 1,
        noise: NoiseTable | None = None,
        seed: int = 0,
    ) -> None:
        self.mean: NDArray[np.float64] = start_parameters(initial).astype(np.float64)
        dim = self.mean.size
        population = 4 + int(3 * math.log(dim)) if population is None else population
        super().__init__(population, seed, max_age, dim, noise)
        if self.population < 2:
            raise ValueError(f"population must be at least 2, not {self.population}: utilities compare")
        self.widths: NDArray[np.float64] = np.broadcast_to(np.asarray(sigma, np.float64), (dim,)).copy()
        if not (self.widths > 0).all():
            raise ValueError(f"sigma must be above 0, not {sigma}")
        self.learning_rate = learning_rate
        self.width_learning_rate: float = (
            (3 + math.log(dim)) / (5 * math.sqrt(dim)) if width_learning_rate is None else width_learning_rate
        )
        for name, rate in (("learning_rate", self.learning_rate), ("width_learning_rate", self.width_learning_rate)):
            if not rate > 0:
                raise ValueError(f"{name} must be above 0, not {rate}")

    def evaluator(self) -> Perturbed:
        if self._evaluator is None:
            mean, widths = self.mean.astype(np.float32), self.widths.astype(np.float32)
            self._evaluator = Perturbed(mean, widths, self._draws, mirrored=False)
        return self._evaluator

    def incumbent(self) -> NDArray[np.float32]:
        """Return the mean."""
        return self.evaluator().centre

    def figures(self) -> dict[str, float]:
        """Return the mean width, and the share of stale results in the last step."""
        return self._figures

    def _learn(self, batch: EvaluatedBatch) -> None:
        utilities = log_utilities(batch.fitnesses).astype(np.float32)
        [(of_mean, of_squares)] = weighted_sums(self._draws, [(batch.candidates, utilities)], self.map, squares=True)
        # Utilities sum to 0, so the 1 in z² - 1 cancels.
        self.mean = self.mean + self.learning_rate * self.widths * of_mean
        self.widths = self.widths * np.exp(self.width_learning_rate / 2 * of_squares.astype(np.float64))
        self._figures = {"sigma": float(self.widths.mean()), "stale": batch.stale}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"mean": self.mean, "widths": self.widths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.mean, self.widths = np.array(state["mean"]), np.array(state["widths"])

    def _identity(self) -> dict[str, Any]:
        return {
            "algorithm": "SNES",
            "parameters": self.mean.size,
            "population": self.population,
            "seed": self.seed,
            "noise": repr(self._draws.table),
        }
