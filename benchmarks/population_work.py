"""The functions that the benchmark of populations sends to workers, and the strategy that other pools run by hand."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

#: A crowd's clock stands here in its place: see `population_crowd`.
sleep = time.sleep

_SIGMA = 0.02
_TABLE = 1 << 18


def rest(duration_s: float) -> float:
    sleep(duration_s)
    return duration_s


# ---------------------------------------------------------------- the paper's protocol: evaluations that sleep


def sphere(duration_s: float, x: Vector) -> float:
    """An evaluation whose simulation takes `duration_s`."""
    sleep(duration_s)
    return -float(x @ x)


@functools.cache
def table() -> Vector:
    """Noise, made once in each process, or before it was forked."""
    return np.random.default_rng(0).standard_normal(_TABLE, np.float32)


def noise(generation: int, number: int, dim: int) -> Vector:
    at = (generation * 1_000_003 + number) * 2_654_435_761 % (_TABLE - dim)
    return table()[at : at + dim]


def perturbed_sphere(centre: Vector, generation: int, duration_s: float, candidate: int) -> float:
    """What a worker of another pool does: the candidate is a number here, too."""
    number, is_minus = divmod(candidate, 2)
    x = noise(generation, number, centre.size) * np.float32(-_SIGMA if is_minus else _SIGMA)
    return sphere(duration_s, np.add(x, centre, out=x))


def updated(centre: Vector, generation: int, fitness: list[float]) -> Vector:
    """What the launcher of another pool does then: centred ranks, and the weighted sum of the noise."""
    ranks = np.empty(len(fitness), np.float32)
    ranks[np.argsort(fitness)] = np.linspace(-0.5, 0.5, len(fitness), dtype=np.float32)
    gradient = np.zeros_like(centre)
    for number, weight in enumerate(ranks[0::2] - ranks[1::2]):
        gradient += weight * noise(generation, number, centre.size)
    gradient *= np.float32(0.01 / len(fitness) / _SIGMA)
    return np.add(centre, gradient, out=gradient)


# ---------------------------------------------------------------- evaluations that read all of their parameters


def read_all(duration_s: float, parameters: Vector) -> float:
    sleep(duration_s)
    return float(parameters.sum())


def read_all_numbered(parameters: Vector, duration_s: float, _candidate: int) -> float:
    return read_all(duration_s, parameters)


def first(x: Vector) -> float:
    """An evaluation that takes no time."""
    return float(x[0])


# ---------------------------------------------------------------- rollouts

NUM_OBSERVATIONS, NUM_ACTIONS, MOST_STEPS = 24, 4, 200
NUM_WEIGHTS = NUM_OBSERVATIONS * NUM_ACTIONS


@functools.cache
def walker() -> Any:
    gymnasium = __import__("gymnasium")
    return gymnasium.make("BipedalWalker-v3", max_episode_steps=MOST_STEPS)


def walk(x: Vector, seed: int) -> tuple[float, int]:
    """One episode of BipedalWalker with a linear policy: what it earned, and its steps."""
    env = walker()
    # A world that was walked on before is not the same as a fresh one, and results would depend on who runs what.
    env.unwrapped._destroy()
    env.unwrapped.world = type(env.unwrapped.world)()
    weights = x.reshape(NUM_ACTIONS, NUM_OBSERVATIONS)
    observation, _ = env.reset(seed=seed)
    earned, num_steps, is_over = 0.0, 0, False
    while not is_over:
        observation, reward, terminated, truncated, _ = env.step(np.tanh(weights @ observation))
        earned += float(reward)
        num_steps += 1
        is_over = terminated or truncated
    return earned, num_steps
