"""What counts of fitnesses: their order rather than their values, so that one lucky evaluation does not decide a step.

Centred ranks: Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement
Learning, 2017 (https://arxiv.org/abs/1703.03864), section 2.1, after the utilities of Wierstra et al.: Natural
Evolution Strategies, JMLR 2014 (https://jmlr.org/papers/v15/wierstra14a.html), section 3.1.

Unlike in the code of either paper, equal fitnesses get equal weights, the mean of those that they would share. Many
evaluations end at the same limit (CartPole at 500, a maze at its wall), and an order among these would be noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def ranks(fitnesses: Floats) -> Floats:
    """Position in ascending order, from 0; equal ones share the mean of theirs."""
    _, which, counts = np.unique(fitnesses, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[which]


def centred_ranks(fitnesses: Floats) -> Floats:
    """Ranks from -0.5, the worst, to 0.5."""
    if len(fitnesses) < 2:
        return np.zeros(len(fitnesses))
    return ranks(fitnesses) / (len(fitnesses) - 1) - 0.5


def signs(fitnesses: Floats) -> Floats:
    """0.5 above the median, -0.5 below, 0 at it."""
    order = ranks(fitnesses)
    return np.sign(order - (len(fitnesses) - 1) / 2) / 2


def normalised(fitnesses: Floats) -> Floats:
    """Standard deviations from the mean, of values not ranks; an infinite one counts as the most extreme finite one."""
    finite = fitnesses[np.isfinite(fitnesses)]
    if not len(finite):
        return np.zeros(len(fitnesses))
    values = np.clip(fitnesses, finite.min(), finite.max())
    deviation = float(values.std())
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros(len(values))


def log_utilities(fitnesses: Floats) -> Floats:
    """Utilities of natural evolution strategies: logarithmic for the better half, equal for the rest; they sum to 0."""
    count = len(fitnesses)
    of_rank = np.maximum(0.0, np.log(count / 2 + 1) - np.log(np.arange(count, 0, -1)))
    of_rank = of_rank / of_rank.sum() - 1 / count
    _, which, counts = np.unique(fitnesses, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    return (np.add.reduceat(of_rank, first) / counts)[which]


#: By the name that algorithms take.
SHAPINGS: dict[str, Callable[[Floats], Floats]] = {
    "centred_ranks": centred_ranks,
    "signs": signs,
    "normalised": normalised,
    "log_utilities": log_utilities,
}


def shaping(name: str) -> Callable[[Floats], Floats]:
    """The function of that name.

    Raises:
        ValueError: there is none; says which there are.
    """
    if name not in SHAPINGS:
        raise ValueError(f"shaping must be one of {', '.join(map(repr, SHAPINGS))}, not {name!r}")
    return SHAPINGS[name]
