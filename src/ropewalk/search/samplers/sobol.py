"""Sobol search: a scrambled Sobol sequence, which covers the space more evenly than random numbers.

Sobol 1967; Owen: Scrambling Sobol and Niederreiter-Xing Points, Journal of Complexity 14, 1998; from `scipy.stats.qmc`.
Each hyperparameter that is not a constant has a dimension, which is not used where it is not active.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import qmc

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Distribution, Integers, LogUniform, Uniform
from ropewalk.search.name_streams import NameStreams
from ropewalk.search.samplers.sampler import Observed
from ropewalk.search.samplers.sequence import SequenceSampler
from ropewalk.search.space import SearchSpace

_BLOCK = 64
"""Points that are drawn at once; a power of 2, for which the sequence is balanced."""
_MOST = 2**20
"""Points after which the sequence ends, so that constraints that admit nothing more end it too."""


class SobolSampler(SequenceSampler):
    """Goes through a Sobol sequence, scrambled by the seed; its first 2^k configurations cover the space evenly.

    Hyperparameters that a trial asks for by name have no dimension, and are drawn at random.
    """

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        self._seed = seed
        for each in space.parameters.values():
            if not each.is_constant and not isinstance(each.distribution, Uniform | LogUniform | Integers | Choice):
                raise SearchInvalid(
                    f"{each.name} is of a class that a Sobol sequence cannot sample, {each.distribution!r}; "
                    "use the sampler 'random'",
                    parameter=each.name,
                )
        super().begin(space, objectives, seed)

    def configurations(self, space: SearchSpace, seed: int) -> Iterator[dict[str, Any]]:
        names = [each.name for each in space.parameters.values() if not each.is_constant]
        for point in _points(len(names), seed):
            shares = dict(zip(names, point, strict=True))
            yield space.chosen(lambda name, distribution, at=shares: distribution.at(at[name]))

    def suggest(self, number: int, name: str, distribution: Distribution, trials: Sequence[Observed]) -> Any:
        return NameStreams(self._seed, number).draw(name, distribution)


def _points(dimensions: int, seed: int) -> Iterator[list[float]]:
    """Yield points of the unit cube."""
    if dimensions == 0:
        yield from ([] for _ in range(_MOST))
        return
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    for _ in range(_MOST // _BLOCK):
        yield from sequence.random(_BLOCK).tolist()
