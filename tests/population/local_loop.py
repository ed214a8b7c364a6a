"""A loop of its own for tests of algorithms: ask, evaluate one after the other in this process, tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial

Function = Callable[[Any, Trial], float | Outcome]


def ask_and_evaluate(algorithm: Algorithm[Any], function: Function, *, ask: int = 0) -> tuple[list[Any], list[Outcome]]:
    """Candidates of a generation and their outcomes; `ask` is the number of the ask, of which seeds are derived."""
    candidates = list(algorithm.ask(algorithm.population))
    evaluator = algorithm.evaluator()
    outcomes: list[Outcome] = []
    for position, candidate in enumerate(candidates):
        trial = Trial(derive(derive(algorithm.seed, ask), position), observations=evaluator.observations)
        outcome = evaluator(function, candidate, trial)
        outcome.observations = trial.collected
        outcomes.append(outcome)
    return candidates, outcomes


def run(algorithm: Algorithm[Any], function: Function, generations: int, *, first: int = 0) -> None:
    """Whole generations, told in one piece."""
    for generation in range(first, first + generations):
        algorithm.tell(*ask_and_evaluate(algorithm, function, ask=generation))


def sphere(x: Any, trial: Trial) -> float:
    """Best at 1 in every dimension, with 0."""
    return -float(np.sum((x - 1.0) ** 2))


def rastrigin(x: Any, trial: Trial) -> float:
    """Best at 0 in every dimension, with 0, among many local optima."""
    return -float(10 * len(x) + np.sum(x * x - 10 * np.cos(2 * np.pi * x)))


def same_state(one: Any, other: Any) -> bool:
    """Whether two state trees are equal, bit for bit; what is not a number equals itself."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_state, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and (one == other or one != one)


def is_plain(state: Any) -> bool:
    """Whether this is numbers, strings, None, arrays, and lists and dicts of these."""
    if isinstance(state, dict):
        return all(isinstance(key, str) and is_plain(value) for key, value in state.items())
    if isinstance(state, list):
        return all(map(is_plain, state))
    return state is None or type(state) in (int, float, str, bool, np.ndarray)
