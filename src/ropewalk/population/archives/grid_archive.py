"""An archive whose niches are the cells of a grid over the behaviours.

Mouret, Clune: Illuminating search spaces by mapping elites, 2015 (https://arxiv.org/abs/1504.04909), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.archives.elite_archive import EliteArchive, Indices


class GridArchive(EliteArchive):
    """Divides each component of a behaviour into equal parts; a niche is one part of each.

    Mouret and Clune, Illuminating search spaces by mapping elites, 2015 (https://arxiv.org/abs/1504.04909), section
    3.

    Args:
        shape: number of parts of each component.
        ranges: (low, high) of each component; values outside belong to the outermost part.
        qd_offset: the fitness that contributes 0 to the QD score.

    Example:
        >>> archive = GridArchive((2, 3), [(0, 1), (0, 1)])
        >>> archive.add([[7.0], [8.0]], [1.0, 2.0], [[0.1, 0.9], [0.2, 0.8]])  # both into the same niche
        (1, 0)
        >>> archive.solutions.tolist(), archive.fitness_by_niche().tolist()
        ([[8.0]], [[nan, nan, 2.0], [nan, nan, nan]])
    """

    def __init__(self, shape: Sequence[int], ranges: Sequence[tuple[float, float]], *, qd_offset: float = 0.0) -> None:
        if len(shape) != len(ranges):
            raise ValueError(f"shape and ranges must be of one length, not {len(shape)} and {len(ranges)}")
        if any(parts < 1 for parts in shape):
            raise ValueError(f"shape must have at least 1 part for each number of a behaviour, not {tuple(shape)}")
        super().__init__(math.prod(shape), ranges, qd_offset)
        self._shape = tuple(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of parts of each component."""
        return self._shape

    def niches_of(self, behaviours: NDArray[np.float64]) -> Indices:
        """Return the cell index of each behaviour, in C order."""
        parts = np.array(self._shape)
        share = (behaviours - self.lows) / (self.highs - self.lows)
        cells = np.clip(np.floor(share * parts), 0, parts - 1).astype(np.int64)
        return np.asarray(np.ravel_multi_index(tuple(cells.T), self._shape), np.int64)
