"""`PopulationTraining`: the settings by which a search is carried out by population based training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PopulationTraining:
    """Population based training as the scheduler of a search: bad members copy good ones, and change hyperparameters.

    Jaderberg et al., Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846).

    It is `ropewalk.population.PBT` with the function of a search: each member is a trial, from the first step to the
    last one, and its hyperparameters change while it trains.

    Attributes:
        steps: number of steps after which a member is done.
        population: number of members, which are the trials of the search.
        interval: number of steps between two decisions.
        quantile: share of the members that copy, and that are copied; at most a half.
        resample_probability: probability of drawing a hyperparameter again, instead of perturbing it.
        factors: factors for perturbation.
        burn_in: number of steps before a member may copy another.
        synchronous: whether all members end an interval before any begins the next: the result is then the same for any
            number of workers.
    """

    steps: int
    population: int = 8
    interval: int = 1
    quantile: float = 0.25
    resample_probability: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.2)
    burn_in: int = 0
    synchronous: bool = False
