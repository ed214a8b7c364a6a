"""What an evaluation may know beside its candidate: its seed, and how observations are normalised."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.observation_statistics import ObservationCollector, ObservationStatistics

#: Seeds that environments and libraries take are often of 31 bits.
_SEED_BITS = 31


class Trial:
    """One evaluation, from within. The same for a candidate however often, where and when it is evaluated.

    Args:
        seed: of 64 bits; evaluations get independent ones.
        is_test: whether the policy itself is tested, and nothing is learnt from the outcome.
        observations: what is known of observations, if the algorithm normalises them.
    """

    def __init__(self, seed: int, *, is_test: bool = False, observations: ObservationStatistics | None = None) -> None:
        self.full_seed = seed
        self.is_test = is_test
        self._observations = observations
        self._collector: ObservationCollector | None = None

    @property
    def seed(self) -> int:
        """A seed from 0 to 2**31 - 1, for `env.reset(seed=trial.seed)` and the like."""
        return self.full_seed & ((1 << _SEED_BITS) - 1)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers of this evaluation."""
        return np.random.default_rng(self.full_seed)

    def seeds(self, num: int) -> list[int]:
        """Seeds of several episodes of this evaluation, each from 0 to 2**31 - 1."""
        words = np.random.SeedSequence(self.full_seed).generate_state(num, np.uint64)
        return [int(word) >> (64 - _SEED_BITS) for word in words]

    def normalise(self, observation: NDArray[np.floating]) -> NDArray[np.float64]:
        """The observation minus the mean of those seen before, over their standard deviation, within ±10.

        Only if the algorithm keeps such statistics; else the observation as it is. In a small share of evaluations,
        chosen by their seeds, what passes here is counted (Salimans et al. 2017, section 2.1).
        """
        if self._observations is None:
            return np.asarray(observation, np.float64)
        if self._collector is None:
            self._collector = self._observations.collector(self.full_seed, is_test=self.is_test)
        return self._collector.normalise(observation)

    @property
    def collected(self) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:
        """(number, sum, sum of squares) of the observations counted here, if they were to be counted."""
        return self._collector.collected if self._collector else None
