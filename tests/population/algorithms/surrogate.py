"""The toy problem of the PBT paper: what is trained on is not what counts, and the hyperparameters say what is.

Jaderberg et al. 2017 (https://arxiv.org/abs/1711.09846), figure 2 and appendix B: the score is 1.2 - (x0² + x1²), the
gradient is that of 1.2 - (h0 x0² + h1 x1²). With h = (1, 0) or (0, 1), the corners that a grid has, one of the two
stays where it began; a schedule of both reaches the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.algorithms.pbt_member import Interval, PBTMember
from ropewalk.population.hyperparameters import Uniform
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial

SPACE = {"h0": Uniform(0.0, 1.0), "h1": Uniform(0.0, 1.0)}
CORNERS = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]
TOP = 1.2
NOISE = 0.0


def train(member: PBTMember, trial: Trial) -> float:
    """Gradient ascent on the surrogate; the score is of the true objective."""
    x = np.array([0.9, 0.9]) if member.state is None else member.state
    h = np.array([member.hyperparameters["h0"], member.hyperparameters["h1"]])
    for _ in range(member.interval):
        x -= 0.02 * h * x  # in place: a state is the member's own
    member.state = x
    return TOP - float(x @ x)


def train_with_noise(member: PBTMember, trial: Trial) -> float:
    """The same, with noise from the trial in every interval."""
    train(member, trial)
    member.state = member.state + trial.rng.normal(0.0, 0.01, 2)
    return TOP - float(member.state @ member.state)


def train_measured(member: PBTMember, trial: Trial) -> float:
    """The same, but scores are never equal: what is measured has some noise, and a tie is not copied."""
    return train(member, trial) + 1e-9 * trial.rng.random()


def explore(hyperparameters: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The paper's: a small step from where the better member is."""
    return {name: float(np.clip(value + rng.normal(0, 0.1), 0, 1)) for name, value in hyperparameters.items()}


def outcomes_of(algorithm: Algorithm[Interval], asked: Sequence[Interval], function: Any = train) -> list[Outcome]:
    """What workers would say."""
    evaluator = algorithm.evaluator()
    return [evaluator(function, interval, Trial(0)) for interval in asked]


def run(algorithm: Algorithm[Interval], n: int, *, function: Any = train, most: int = 10**6) -> None:
    """Ask for `n` and tell, until it has finished or was asked often enough."""
    for _ in range(most):
        if algorithm.finished:
            return
        asked = algorithm.ask(n)
        algorithm.tell(asked, outcomes_of(algorithm, asked, function))
