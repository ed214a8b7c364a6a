"""An archive whose niches are the cells of a centroidal Voronoi tessellation: any number of them, for long behaviours.

Vassiliades, Chatzilygeroudis, Mouret: Using Centroidal Voronoi Tessellations to Scale Up the Multi-dimensional Archive
of Phenotypic Elites Algorithm, 2016 (https://arxiv.org/abs/1610.05729), algorithms 2 and 3. A grid has as many cells as
the product of its parts; here the number of niches does not depend on the length of a behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.population.archives.elite_archive import EliteArchive, Indices

_CHUNK = 1 << 20  # distances computed at a time: 8 MiB


class CVTArchive(EliteArchive):
    """An archive whose niches are the Voronoi cells of centroids, which k-means spreads evenly over the ranges.

    Vassiliades et al., Using Centroidal Voronoi Tessellations to Scale Up MAP-Elites, 2016
    (https://arxiv.org/abs/1610.05729), algorithms 2 and 3.

    The centroids are computed when they are first needed, and are part of the state.

    Args:
        num_niches: number of niches.
        ranges: (low, high) of each component of a behaviour.
        num_samples: number of uniform points on which k-means runs; defaults to 25 per niche.
        max_iterations: maximum number of iterations of k-means, which stops earlier if no centroid moves.
        seed: seed of the points.
        centroids: centroids of shape (num_niches, components of a behaviour) to use instead of k-means.
        qd_offset: the fitness that contributes 0 to the QD score.
    """

    def __init__(
        self,
        num_niches: int,
        ranges: Sequence[tuple[float, float]],
        *,
        num_samples: int | None = None,
        max_iterations: int = 20,
        seed: int = 0,
        centroids: ArrayLike | None = None,
        qd_offset: float = 0.0,
    ) -> None:
        check_number("num_niches", num_niches, Integral, "a whole number", least=1, required=True)
        check_number("max_iterations", max_iterations, Integral, "a whole number", least=1, required=True)
        super().__init__(num_niches, ranges, qd_offset)
        self._num_samples = 25 * num_niches if num_samples is None else num_samples
        if self._num_samples < num_niches:
            raise ValueError(f"num_samples must be at least num_niches ({num_niches}), not {num_samples}")
        self._max_iterations, self._seed = max_iterations, seed
        if centroids is not None:
            given = np.array(centroids, np.float64)
            if given.shape != (num_niches, len(ranges)):
                raise ValueError(f"centroids must have the shape {(num_niches, len(ranges))}, not {given.shape}")
            self.centroids = given

    @cached_property
    def centroids(self) -> NDArray[np.float64]:
        """The centroid of each niche: float64 of shape (num_niches, components of a behaviour)."""
        rng = np.random.default_rng(self._seed)
        samples = rng.uniform(self.lows, self.highs, (self._num_samples, len(self.lows)))
        return self._k_means(samples, samples[: self.num_niches].copy())

    def _k_means(self, samples: NDArray[np.float64], centroids: NDArray[np.float64]) -> NDArray[np.float64]:
        before = np.full(len(samples), -1)
        for _ in range(self._max_iterations):  # Lloyd's algorithm
            owner = self._nearest(samples, centroids)
            if np.array_equal(owner, before):
                break
            before = owner
            counts = np.bincount(owner, minlength=len(centroids))
            sums = np.stack([np.bincount(owner, column, len(centroids)) for column in samples.T], axis=1)
            owned = counts > 0  # a centroid without points stays where it is
            centroids[owned] = sums[owned] / counts[owned, None]
        return centroids

    def _nearest(self, points: NDArray[np.float64], centroids: NDArray[np.float64]) -> Indices:
        scale = self.highs - self.lows  # so that the units of the components do not matter
        points, centroids = (points - self.lows) / scale, (centroids - self.lows) / scale
        nearest = np.zeros(len(points), np.int64)
        step = max(1, _CHUNK // len(centroids))
        squares = (centroids**2).sum(axis=1)
        for start in range(0, len(points), step):  # |p - c|² without |p|², which is the same for all c
            chunk = points[start : start + step]
            nearest[start : start + step] = (squares - 2 * (chunk @ centroids.T)).argmin(axis=1)
        return nearest

    @property
    def shape(self) -> tuple[int, ...]:
        """(number of niches,)."""
        return (self.num_niches,)

    def niches_of(self, behaviours: NDArray[np.float64]) -> Indices:
        """Return the index of the nearest centroid, with distances in units of the ranges.

        Behaviours outside the ranges are clipped first.

        Args:
            behaviours: float64 of shape (n, components of a behaviour).
        """
        return self._nearest(np.clip(behaviours, self.lows, self.highs), self.centroids)

    def state_dict(self) -> dict[str, Any]:
        """Return the centroids and the elites."""
        return {**super().state_dict(), "centroids": self.centroids.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`, including its centroids."""
        super().load_state_dict(state)
        self.centroids = np.array(state["centroids"], np.float64)
