"""Exploit and explore: who copies whom, and which hyperparameters the copy goes on with. Pure.

Jaderberg et al.: Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846), section 4.1:
truncation selection, perturb and resample. The defaults are those that users of Ray Tune know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk.population.hyperparameters import Space, draw_all, perturb_or_resample, plain

#: A user's function: hyperparameters of a better member and random numbers to new hyperparameters.
Explore = Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any]]

_DRAW, _MUTATE = 1, 2
"""Purposes of random numbers."""


def quantiles(scores: Sequence[Any], ready: Sequence[int], share: float) -> tuple[list[int], list[int]]:
    """Who is in the lowest and who in the highest quantile: the same number, at most half of those with a score.

    Args:
        scores: of each member, to be made large; None for one without.
        ready: those that are being compared; they lose ties.
        share: of the members with a score, rounded up.
    """
    known = {number: (score, number not in ready, number) for number, score in enumerate(scores) if score is not None}
    ranked = sorted(known, key=lambda number: known[number])
    num = min(math.ceil(share * len(ranked)), len(ranked) // 2)
    return sorted(ranked[:num]), sorted(ranked[len(ranked) - num :])


class Explorer:
    """Draws and changes hyperparameters; what for which member, and when, follows from the seed.

    Args:
        space: names to distributions.
        resample_probability: of drawing a value anew.
        factors: of which one perturbs a value that is not drawn anew.
        explore: the user's function, in place of the two above.
        seed: of the algorithm.
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
        """Of the hyperparameters."""
        return sorted(self._space)

    def first(self, member: int) -> dict[str, Any]:
        """What a member begins with."""
        return draw_all(self._space, np.random.default_rng([self._seed, _DRAW, member]))

    def rng(self, member: int, interval: int) -> np.random.Generator:
        """The random numbers of what a member does before an interval."""
        return np.random.default_rng([self._seed, _MUTATE, member, interval])

    def explored(self, hyperparameters: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Those of a better member, changed."""
        if self._explore is not None:
            return self.checked(self._explore(dict(hyperparameters), rng), "explore")
        return perturb_or_resample(self._space, hyperparameters, rng, self._resample, self._factors)

    def checked(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The values, if they are of these hyperparameters.

        Raises:
            ValueError: names are missing, or unknown.
            TypeError: one is no number, string, boolean or None.
        """
        if set(values) != set(self._space):
            raise ValueError(f"{where} gave the hyperparameters {sorted(values)}; they must be {self.names}")
        return {name: plain(values[name], name) for name in self._space}
