"""Emitters create new solutions from elites: the variation operators of quality-diversity algorithms.

Each emitter is a small dataclass, called with the elites of shape (num, dim), a random number generator, and the number
of solutions to create. Parents are drawn uniformly from the elites (Mouret and Clune 2015, figure 2). Any callable with
this signature can be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


class Emitter(Protocol):
    """Creates `n` solutions from elites of shape (num, dim) with num >= 1; draws random numbers only from `rng`."""

    def __call__(self, elites: Floats, rng: np.random.Generator, n: int, /) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A parent with normal noise on each component.

    Args:
        sigma: standard deviation of the noise.
    """

    sigma: float = 0.1

    def __post_init__(self) -> None:
        if not self.sigma > 0:
            raise ValueError(f"sigma must be above 0, not {self.sigma}")

    def __call__(self, elites: Floats, rng: np.random.Generator, n: int, /) -> Floats:
        """Return `n` solutions, of shape (n, dim)."""
        parents = elites[rng.integers(len(elites), size=n)]
        return parents + self.sigma * rng.standard_normal(parents.shape)


@dataclass(frozen=True, slots=True)
class IsoLine:
    """A parent with slight noise, moved along the line to a second parent: elites tend to lie close to each other.

    Vassiliades, Mouret: Discovering the Elite Hypervolume by Leveraging Interspecies Correlation, 2018
    (https://arxiv.org/abs/1804.03906), equation 2.

    Args:
        iso_sigma: standard deviation of the noise on each component.
        line_sigma: standard deviation of the step along the line, as a multiple of its length.
    """

    iso_sigma: float = 0.01
    line_sigma: float = 0.2

    def __post_init__(self) -> None:
        if not self.iso_sigma > 0:
            raise ValueError(f"iso_sigma must be above 0, not {self.iso_sigma}")
        if not self.line_sigma >= 0:
            raise ValueError(f"line_sigma must be 0 or more, not {self.line_sigma}")

    def __call__(self, elites: Floats, rng: np.random.Generator, n: int, /) -> Floats:
        """Return `n` solutions, of shape (n, dim)."""
        first, second = (elites[rng.integers(len(elites), size=n)] for _ in range(2))
        noise, step = rng.standard_normal(first.shape), rng.standard_normal((n, 1))
        return first + self.iso_sigma * noise + self.line_sigma * step * (second - first)
