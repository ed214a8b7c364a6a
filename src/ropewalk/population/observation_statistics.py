"""Observation normalisation: running mean and variance, from a sample of evaluations.

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017
(https://arxiv.org/abs/1703.03864), section 2.1. Sums are merged in the order of the candidates, so that the statistics
are the same for any number of workers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CLIP = 10.0


@dataclass(slots=True)
class ObservationStatistics:
    """Count, sum and sum of squares of observations; sent to the workers with the parameters.

    Args:
        shape: shape of one observation.
        share: share of the evaluations whose observations are counted, from 0 to 1.
    """

    shape: tuple[int, ...]
    share: float = 0.01
    count: float = 1e-2
    total: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    squares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share of evaluations to count must be from 0 to 1, not {self.share}")
        if not self.total.size:  # start with a lightly weighted observation (mean 0, variance 1): no division by 0
            self.total = np.zeros(self.shape)
            self.squares = np.full(self.shape, self.count)

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each component: float64, of the shape of an observation."""
        return self.total / self.count

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The standard deviation of each component, at least 0.01: float64, of the shape of an observation."""
        return np.sqrt(np.maximum(self.squares / self.count - self.mean**2, 1e-4))

    def add(self, collected: tuple[int, NDArray[np.float64], NDArray[np.float64]]) -> None:
        """Merge the (number, sum, sum of squares) of one evaluation."""
        count, total, squares = collected
        self.count += count
        self.total = self.total + total
        self.squares = self.squares + squares

    def collector(self, seed: int, *, is_test: bool) -> ObservationCollector:
        """Return the object that normalises, and possibly counts, the observations of one evaluation."""
        counts = not is_test and random.Random(seed ^ 0x0B5E).random() < self.share
        return ObservationCollector(self.mean, self.deviation, counts=counts)

    def state_dict(self) -> dict[str, Any]:
        """Return the count and the sums."""
        return {"count": self.count, "total": self.total, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.count, self.total, self.squares = (
            float(state["count"]),
            np.array(state["total"]),
            np.array(state["squares"]),
        )


class ObservationCollector:
    """Normalises the observations of one evaluation, and counts them if the evaluation is in the sample."""

    def __init__(self, mean: NDArray[np.float64], deviation: NDArray[np.float64], *, counts: bool) -> None:
        self._mean, self._deviation, self._counts = mean, deviation, counts
        self._count, self._total, self._squares = 0, np.zeros(mean.shape), np.zeros(mean.shape)

    def normalise(self, observation: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the observation in standard deviations from the mean, clipped to ±10.

        One with a NaN or an infinite number is not counted: it would make all later observations NaN.
        """
        if self._counts and np.isfinite(observation).all():
            self._count += 1
            self._total += observation
            self._squares += np.square(observation, dtype=np.float64)
        return np.clip((observation - self._mean) / self._deviation, -_CLIP, _CLIP)

    @property
    def collected(self) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:
        """(number, sum, sum of squares), if these observations are counted."""
        return (self._count, self._total, self._squares) if self._counts else None
