"""Random numbers for each hyperparameter of each trial, which no other hyperparameter changes.

A hyperparameter that is added to a space leaves the values of the others as they were, and it makes no difference in
which order a training function asks for its hyperparameters.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ropewalk.population.hyperparameters import Distribution, plain


class NameStreams:
    """The random numbers of one trial.

    Args:
        seed: seed of the search, at least 0.
        trial: number of the trial.
    """

    def __init__(self, seed: int, trial: int) -> None:
        self._seed, self._trial = seed, trial
        self._generators: dict[str, np.random.Generator] = {}

    def draw(self, name: str, distribution: Distribution) -> Any:
        """Draw the next value of a hyperparameter: the first one is the trial's, others replace rejected ones.

        Args:
            name: its dotted name.
            distribution: its distribution.
        """
        if name not in self._generators:
            digest = hashlib.sha256(f"{self._seed} {self._trial} {name}".encode()).digest()
            self._generators[name] = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        return plain(distribution.draw(self._generators[name]), name)


def derived_seed(seed: int, trial: int) -> int:
    """Return a seed of 32 bits for one trial, for generators of other libraries."""
    return int(np.random.SeedSequence((seed, trial)).generate_state(1)[0])
