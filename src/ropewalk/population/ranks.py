"""Fitness shaping: steps depend on the order of fitnesses, not on their values, so that no outlier dominates a step.

Centred ranks: Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement
Learning, 2017 (https://arxiv.org/abs/1703.03864), section 2.1, after the utilities of Wierstra et al.: Natural
Evolution Strategies, JMLR 2014 (https://jmlr.org/papers/v15/wierstra14a.html), section 3.1.

Unlike in the code of either paper, equal fitnesses get equal weights, the mean of the weights of their ranks. Many
evaluations end at the same limit (CartPole at 500, a maze at its wall), and an order among them would be noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ropewalk.near_names import check_choice

Floats = NDArray[np.float64]


def ranks(fitnesses: Floats) -> Floats:
    """Return the position of each fitness in ascending order, from 0; equal ones get the mean of their positions."""
    _, which, counts = np.unique(fitnesses, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[which]


def centred_ranks(fitnesses: Floats) -> Floats:
    """Return ranks scaled from -0.5 (worst) to 0.5 (best)."""
    if len(fitnesses) < 2:
        return np.zeros(len(fitnesses))
    return ranks(fitnesses) / (len(fitnesses) - 1) - 0.5


def signs(fitnesses: Floats) -> Floats:
    """Return 0.5 for fitnesses above the median, -0.5 below it, and 0 at it."""
    order = ranks(fitnesses)
    return np.sign(order - (len(fitnesses) - 1) / 2) / 2


def normalised(fitnesses: Floats) -> Floats:
    """Return standard deviations from the mean, of values and not of ranks.

    An infinite fitness counts as the most extreme finite one.
    """
    finite = fitnesses[np.isfinite(fitnesses)]
    if not len(finite):
        return np.zeros(len(fitnesses))
    # Squares of very large and small values would be infinite, or 0. Powers of 2 change no digit.
    _, exponent = np.frexp(np.abs(finite).max())
    values = np.ldexp(np.clip(fitnesses, finite.min(), finite.max()), -exponent)
    deviation = float(values.std())
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros(len(values))


def log_utilities(fitnesses: Floats) -> Floats:
    """Return the utilities of natural evolution strategies.

    They are logarithmic for the better half and equal for the rest, and sum to 0.
    """
    count = len(fitnesses)
    of_rank = np.maximum(0.0, np.log(count / 2 + 1) - np.log(np.arange(count, 0, -1)))
    of_rank = of_rank / of_rank.sum() - 1 / count
    _, which, counts = np.unique(fitnesses, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    return (np.add.reduceat(of_rank, first) / counts)[which]


SHAPINGS: dict[str, Callable[[Floats], Floats]] = {
    "centred_ranks": centred_ranks,
    "signs": signs,
    "normalised": normalised,
    "log_utilities": log_utilities,
}
"""Shaping functions, by the name that algorithms accept."""


def shaping(name: str) -> Callable[[Floats], Floats]:
    """Return the shaping function with this name.

    Raises:
        ValueError: there is none; the message lists the names.
    """
    check_choice("shaping", name, SHAPINGS)
    return SHAPINGS[name]
