"""Random search: each trial is drawn from the space, without regard to the others.

Bergstra, Bengio: Random Search for Hyper-Parameter Optimization, JMLR 13, 2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.population.hyperparameters import Distribution
from ropewalk.search.name_streams import NameStreams
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace


class RandomSampler(Sampler):
    """Draws each hyperparameter from its distribution; its value follows from the seed, the trial and its name."""

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any]:
        return self._space.draw(NameStreams(self._seed, number))

    def suggest(self, number: int, name: str, distribution: Distribution, trials: Sequence[Observed]) -> Any:
        return NameStreams(self._seed, number).draw(name, distribution)
