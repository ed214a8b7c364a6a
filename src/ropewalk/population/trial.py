"""The trial of an evaluation: its seed, and the normalisation of observations."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.observation_statistics import ObservationCollector, ObservationStatistics

_SEED_BITS = 31
"""Environments and libraries often accept seeds of at most 31 bits."""


class Trial:
    """The context of one evaluation, the same whenever, wherever and however many times its candidate is evaluated.

    Args:
        seed: 64-bit seed; the seeds of different evaluations are independent.
        common: 64-bit seed of all candidates that were asked for together; None: as `seed`.
        is_test: whether the evaluation is a test, from whose outcome nothing is learnt.
        observations: statistics of observations, if the algorithm normalises them; else None.
    """

    def __init__(
        self,
        seed: int,
        *,
        common: int | None = None,
        is_test: bool = False,
        observations: ObservationStatistics | None = None,
    ) -> None:
        self.full_seed = seed
        self._common = seed if common is None or is_test else common
        self.is_test = is_test
        self._observations = observations
        self._collector: ObservationCollector | None = None

    def __repr__(self) -> str:
        return f"<Trial seed={self.seed}{' of a test' if self.is_test else ''}>"

    @property
    def seed(self) -> int:
        """A seed from 0 to 2**31 - 1, for `env.reset(seed=trial.seed)` and similar calls."""
        return self.full_seed & ((1 << _SEED_BITS) - 1)

    @property
    def common_seed(self) -> int:
        """A seed from 0 to 2**31 - 1 that all candidates of a generation share; the next generation has another.

        With common random numbers, candidates are compared on the same episodes, so that luck decides less about their
        ranks (Glasserman, Yao: Some guidelines and guarantees for common random numbers, 1992). It is the seed of all
        candidates that are asked for together: in steady state, each has its own. In a test it is `seed`.
        """
        return self._common & ((1 << _SEED_BITS) - 1)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The random number generator of this evaluation."""
        return np.random.default_rng(self.full_seed)

    def seeds(self, num: int, *, common: bool = False) -> list[int]:
        """Return seeds for `num` episodes of this evaluation, each from 0 to 2**31 - 1.

        Args:
            num: number of seeds.
            common: whether all candidates of a generation get the same; see `common_seed`.
        """
        words = np.random.SeedSequence(self._common if common else self.full_seed).generate_state(num, np.uint64)
        return [int(word) >> (64 - _SEED_BITS) for word in words]

    def normalise(self, observation: NDArray[np.floating]) -> NDArray[np.float64]:
        """Normalise an observation: subtract the running mean, divide by the standard deviation, and clip to ±10.

        Without statistics, the observation is returned unchanged. In a small share of evaluations, chosen by their
        seeds, the observations passed here are added to the statistics (Salimans et al. 2017, section 2.1).

        Args:
            observation: an array of floats of any shape, the same for all observations.
        """
        if self._observations is None:
            return np.asarray(observation, np.float64)
        if self._collector is None:
            self._collector = self._observations.collector(self.full_seed, is_test=self.is_test)
        return self._collector.normalise(observation)

    @property
    def collected(self) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:
        """(number, sum, sum of squares) of the observations passed to `normalise`, if they are to be counted."""
        return self._collector.collected if self._collector else None
