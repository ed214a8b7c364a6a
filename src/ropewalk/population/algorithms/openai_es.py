"""OpenAI-ES: the gradient of a smoothed fitness, from the ranks of many noisy parameters.

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017
(https://arxiv.org/abs/1703.03864), algorithm 2 with section 2.1: mirrored sampling, ranks in place of fitnesses, weight
decay, a noise table, normalised observations.

    candidate ─▶ centre ± sigma · draw ─▶ fitness ─▶ rank ─▶ Σ (rank₊ - rank₋) · draw ─▶ Adam ─▶ centre

As in the code of the paper (https://github.com/openai/evolution-strategies-starter, es_distributed/es.py) all vectors
are float32, and the sum is divided by the number of evaluations and not, as in algorithm 1, by sigma: ranks have no
unit that this would cancel. Unlike there, equal fitnesses share a rank, and results of older parameters may be used.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.numbered import EvaluatedBatch, NumberedAlgorithm
from ropewalk.population.observation_statistics import ObservationStatistics
from ropewalk.population.optimizers import Optimizer, make_optimizer
from ropewalk.population.perturbed import Perturbed, start_parameters, weights_of_draws
from ropewalk.population.ranks import shaping as shaping_called
from ropewalk.population.weighted_sum import Vector, weighted_sum


class OpenAIES(NumberedAlgorithm):
    """Evolution strategies in which only numbers and fitnesses are exchanged.

    Salimans et al., Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017
    (https://arxiv.org/abs/1703.03864), algorithm 2.

    Example:
        >>> import numpy as np
        >>> from ropewalk.population import OpenAIES, evaluate
        >>> algorithm = OpenAIES(np.zeros(3), population=16, sigma=0.1, learning_rate=0.1, seed=1)
        >>> run = evaluate(algorithm, lambda x: -float(x @ x - x.sum()), None, generations=40)
        >>> run.best.round(1)  # the maximum is at 0.5
        array([0.5, 0.5, 0.5], dtype=float32)

    Args:
        initial: initial parameters, of shape (parameters,), or their number: then zeros.
        population: number of candidates in a generation; even if mirrored.
        sigma: standard deviation of the noise.
        learning_rate: learning rate of the optimizer, if `optimizer` is a name.
        optimizer: "adam", "momentum" (SGD with 0.9), "sgd", or an `Optimizer`.
        weight_decay: factor of the parameters that are subtracted from the gradient (the paper's l2coeff).
        mirrored: evaluate each draw with both signs.
        shaping: fitness shaping: "centred_ranks", "signs" (of the difference to the median), "normalised" or
            "log_utilities".
        observation_shape: shape of the observations that `Trial.normalise` normalises; None for none.
        observation_share: share of the evaluations whose observations are counted, from 0 to 1.
        max_age: maximum age of results, in steps since their parameters were current; 0 skips all stale results, as in
            the paper's code.
        noise: the noise table; by default one that suits the number of parameters.
        seed: seed of the noise.
    """

    def __init__(
        self,
        initial: Any,
        *,
        population: int = 256,
        sigma: float = 0.02,
        learning_rate: float = 0.01,
        optimizer: str | Optimizer = "adam",
        weight_decay: float = 0.0,
        mirrored: bool = True,
        shaping: str = "centred_ranks",
        observation_shape: int | tuple[int, ...] | None = None,
        observation_share: float = 0.01,
        max_age: int = 1,
        noise: NoiseTable | None = None,
        seed: int = 0,
    ) -> None:
        self.parameters: Vector = start_parameters(initial)
        super().__init__(population, seed, max_age, self.parameters.size, noise)
        if mirrored and population % 2:
            raise ValueError(f"population must be even if mirrored, not {population}")
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0, not {sigma}")
        if weight_decay < 0:
            raise ValueError(f"weight_decay must be 0 or more, not {weight_decay}")
        self.sigma: float = sigma
        self.optimizer: Optimizer = (
            make_optimizer(optimizer, learning_rate) if isinstance(optimizer, str) else optimizer
        )
        self.weight_decay = weight_decay
        self.mirrored = mirrored
        self._shape = shaping_called(shaping)
        self._shaping = shaping
        self._observations = (
            None
            if observation_shape is None
            else ObservationStatistics(np.zeros(observation_shape).shape, share=observation_share)
        )

    def evaluator(self) -> Perturbed:
        if self._evaluator is None:
            seen = copy.copy(self._observations)  # the original continues counting, but changes no array in place
            self._evaluator = Perturbed(
                self.parameters, self.sigma, self._draws, mirrored=self.mirrored, observations=seen
            )
        return self._evaluator

    def incumbent(self) -> Vector:
        """Return the unperturbed parameters, read-only."""
        return self.parameters

    def figures(self) -> dict[str, float]:
        """Return figures of the last step: gradient norm, relative size of the step, share of stale results."""
        return self._figures

    def _learn(self, batch: EvaluatedBatch) -> None:
        gradient = self._gradient(batch)
        if self.weight_decay:
            gradient -= np.float32(self.weight_decay) * self.parameters
        before, self.parameters = self.parameters, self.optimizer.step(self.parameters, gradient)
        self.parameters.flags.writeable = False
        if self._observations is not None:
            for collected in batch.observations:
                self._observations.add(collected)
        change = float(np.linalg.norm(self.parameters - before)) / max(float(np.linalg.norm(before)), 1e-12)
        self._figures = {
            "gradient_norm": float(np.linalg.norm(gradient)),
            "update_ratio": change,
            "stale": batch.stale,
        }

    def _gradient(self, batch: EvaluatedBatch) -> Vector:
        weights = self._shape(batch.fitnesses)
        if self.mirrored:
            numbers, of_draws = weights_of_draws(batch.candidates, weights)
        else:
            numbers, of_draws = batch.candidates, weights.astype(np.float32)
        gradient = weighted_sum(self._draws, numbers, of_draws, self.map)
        gradient /= np.float32(len(batch.candidates))
        return gradient

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "sigma": self.sigma,
            "parameters": self.parameters,
            "optimizer": self.optimizer.state_dict(),
            "observations": None if self._observations is None else self._observations.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.sigma = float(state["sigma"])
        self.parameters = start_parameters(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._observations is not None:
            self._observations.load_state_dict(state["observations"])

    def _identity(self) -> dict[str, Any]:
        return {
            "algorithm": "OpenAIES",
            "parameters": self.parameters.size,
            "population": self.population,
            "mirrored": self.mirrored,
            "shaping": self._shaping,
            "seed": self.seed,
            "noise": repr(self._draws.table),
            "observations": None if self._observations is None else list(self._observations.shape),
        }
