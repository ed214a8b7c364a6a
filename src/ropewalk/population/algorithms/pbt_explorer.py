"""Exploit and explore: which members copy which, and with which hyperparameters a copy continues. Pure.

Jaderberg et al.: Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846), section 4.1:
truncation selection, perturb and resample. The defaults are those of Ray Tune.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk.population.hyperparameters import Space, draw_all, perturb_or_resample, plain

Explore = Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any]]
"""A user's function: computes new hyperparameters from those of a better member and a random number generator."""

_DRAW, _MUTATE = 1, 2
"""The purposes of random numbers, each with its own stream."""


def quantiles(scores: Sequence[Any], ready: Sequence[int], share: float) -> tuple[list[int], list[int]]:
    """Return the members of the lowest and of the highest quantile.

    Both have the same size, at most half of the members with a score.

    Args:
        scores: score of each member, to maximise; None for a member without one.
        ready: the members that are being compared; they lose ties.
        share: share of the members with a score, rounded up.
    """
    known = {number: (score, number not in ready, number) for number, score in enumerate(scores) if score is not None}
    ranked = sorted(known, key=lambda number: known[number])
    num = min(math.ceil(share * len(ranked)), len(ranked) // 2)
    return sorted(ranked[:num]), sorted(ranked[len(ranked) - num :])


class Explorer:
    """Draws and changes hyperparameters; the seed determines the results for each member and interval.

    Args:
        space: names to distributions.
        resample_probability: probability of drawing a value again.
        factors: factors of which one perturbs a value that is not drawn again.
        explore: the user's function, in place of the two above.
        seed: seed of the algorithm.
    """

    def __init__(
        self,
        space: Space,
        resample_probability: float,
        factors: Sequence[float],
        explore: Explore | None,
        seed: int,
    ) -> None:
        if not isinstance(space, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"hyperparameters must map names to distributions or values, not be {space!r:.80}")
        if not 0 <= resample_probability <= 1:
            raise ValueError(f"resample_probability must be from 0 to 1, not {resample_probability}")
        if not factors or min(factors) <= 0:
            raise ValueError(f"factors must be one or more numbers above 0, not {factors!r}")
        self._space, self._resample, self._factors = dict(space), resample_probability, tuple(factors)
        self._explore, self._seed = explore, seed

    @property
    def names(self) -> list[str]:
        """The names of the hyperparameters."""
        return sorted(self._space)

    def first(self, member: int) -> dict[str, Any]:
        """Return the initial hyperparameters of a member."""
        return draw_all(self._space, np.random.default_rng([self._seed, _DRAW, member]))

    def rng(self, member: int, interval: int) -> np.random.Generator:
        """Return the generator of the random numbers that a member uses before an interval."""
        return np.random.default_rng([self._seed, _MUTATE, member, interval])

    def explored(self, hyperparameters: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the hyperparameters of a better member, changed."""
        if self._explore is not None:
            return self.checked(self._explore(dict(hyperparameters), rng), "explore")
        return perturb_or_resample(self._space, hyperparameters, rng, self._resample, self._factors)

    def checked(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the values after checking them.

        Raises:
            ValueError: names are missing, or unknown.
            TypeError: a value is not a number, string, boolean or None.
        """
        if set(values) != set(self._space):
            raise ValueError(f"{where} gave the hyperparameters {sorted(values)}; they must be {self.names}")
        return {name: plain(values[name], name) for name in self._space}
