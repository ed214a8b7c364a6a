"""CartPole-v1 for a linear policy of four weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ropewalk.population.trial import Trial

gymnasium = pytest.importorskip("gymnasium")
LIMIT = 500
#: One in each run of the tests; three take some seconds.
SEEDS = [0, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)]


@cache
def environment() -> Any:
    return gymnasium.make("CartPole-v1").unwrapped


def play(x: Any, trial: Trial) -> float:
    """The return of one episode."""
    weights = [float(weight) for weight in x]
    observation, _ = environment().reset(seed=trial.seed)
    for step in range(1, LIMIT + 1):
        push = sum(value * weight for value, weight in zip(observation.tolist(), weights, strict=True))
        observation, _, has_fallen, _, _ = environment().step(int(push > 0))
        if has_fallen:
            return float(step)
    return float(LIMIT)


def mean_return(x: Any) -> float:
    """Over 20 episodes that no training saw."""
    return sum(play(x, Trial(10_000 + episode)) for episode in range(20)) / 20
