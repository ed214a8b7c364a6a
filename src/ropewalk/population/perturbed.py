"""Candidates as numbers: parameters plus noise that any worker derives from the number.

    launcher ── 4711 ──▶ worker: centre ± sigma · table[index(4711 // 2)]
                          │         └─ the evaluator: sent once per generation and host
                          └─ noise table: one in the memory of each host

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017
(https://arxiv.org/abs/1703.03864), algorithm 2 and section 2.1. Parameters and noise are float32, as in its code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.observation_statistics import ObservationStatistics
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.trial import Trial
from ropewalk.population.weighted_sum import Draws, Numbers, Vector

_LEAST_TABLE, _USUAL_TABLE = 2**20, 2**25


class Perturbed(Evaluator[int]):
    """Evaluates `centre + sigma * draw`; mirrored, candidates 2k and 2k + 1 share draw k, with opposite signs.

    Args:
        centre: the parameters, float32 of shape (dim,); not copied.
        sigma: standard deviation of the noise: one number, or one for each parameter.
        draws: the noise.
        mirrored: whether candidates come in pairs.
        observations: statistics for `Trial.normalise`.
    """

    def __init__(
        self,
        centre: Vector,
        sigma: float | Vector,
        draws: Draws,
        *,
        mirrored: bool = True,
        observations: ObservationStatistics | None = None,
    ) -> None:
        self.centre = centre
        self.sigma: np.float32 | Vector = sigma if isinstance(sigma, np.ndarray) else np.float32(sigma)
        self.draws = draws
        self.mirrored = mirrored
        self.observations = observations

    def parameters(self, candidate: int) -> Vector:
        """Return the parameters of a candidate: float32 of shape (dim,)."""
        number, is_minus = divmod(candidate, 2) if self.mirrored else (candidate, 0)
        noise = self.draws[number] * self.sigma
        return np.subtract(self.centre, noise, out=noise) if is_minus else np.add(self.centre, noise, out=noise)

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(self.parameters(candidate), trial))


def weights_of_draws(candidates: Numbers, weights: NDArray[np.float64]) -> tuple[Numbers, Vector]:
    """Convert weights of mirrored candidates to weights of draws: the weight of 2k minus the weight of 2k + 1.

    One half of a pair may be missing.

    Args:
        candidates: numbers in ascending order.
        weights: the weight of each candidate.

    Returns:
        The numbers of the draws in ascending order, and the weight of each.
    """
    numbers, which = np.unique(candidates // 2, return_inverse=True)
    signed = np.where(candidates % 2, -weights, weights)
    return numbers, np.bincount(which, signed, len(numbers)).astype(np.float32)


def usual_table(dim: int) -> NoiseTable:
    """Return a noise table for vectors of `dim` numbers: 4 to 128 MB, or 8 times as large as the vectors."""
    wanted = max(_LEAST_TABLE, min(128 * dim, _USUAL_TABLE), 8 * dim)
    return NoiseTable(1 << (wanted - 1).bit_length(), 0)


def start_parameters(initial: Any) -> Vector:
    """Return the initial parameters, float32 and read-only: a copy of those given, or the given number of zeros.

    Raises:
        ValueError: `initial` is neither a number of parameters nor a vector of parameters.
    """
    if isinstance(initial, int):
        if initial < 1:
            raise ValueError(f"initial must be at least 1 parameter, not {initial}")
        parameters = np.zeros(initial, np.float32)
    else:
        parameters = np.array(initial, np.float32)
        if parameters.ndim != 1 or not parameters.size:
            raise ValueError(
                "initial must be parameters as an array of one dimension, or their number; "
                f"not an array of shape {parameters.shape}"
            )
        if not np.isfinite(parameters).all():
            raise ValueError("initial holds parameters that are infinite or not a number")
    parameters.flags.writeable = False
    return parameters
