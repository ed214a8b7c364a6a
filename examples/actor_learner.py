"""Actors, a learner and a replay between them, in the simplest form.

    python examples/actor_learner.py

    actors ── insert(episode) ──▶ replay ── sample() ──▶ learner
       ▲                                                    │
       └───────────────────── weights() ────────────────────┘

Actors play CartPole with the latest weights and never wait for the learner. The
learner imitates the best fifth of the last episodes, as the cross-entropy method
does (Rubinstein, 1999); five numbers are policy enough. The replay holds the
learner back until there is something new to learn from.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import gymnasium
import numpy as np

import ropewalk as rw

ACTORS, CAPACITY, FRESH, STEPS = 2, 64, 16, 50
PASSES, RATE = 20, 3.0  # over the best episodes in each step; far above usual rates, as there are five weights

Episode = tuple[np.ndarray, np.ndarray]  # observations (time, 5), the last column 1 for the bias; actions (time,)


def push_right(weights: np.ndarray, observations: np.ndarray) -> np.ndarray:
    """The policy: a probability for each observation."""
    return 1 / (1 + np.exp(-np.clip(observations @ weights, -30, 30)))


def play(environment: Any, weights: np.ndarray, generator: np.random.Generator) -> Episode:
    """One episode; its return is its length, as CartPole gives 1 for each step."""
    observation, _ = environment.reset(seed=int(generator.integers(2**31)))
    observations: list[np.ndarray] = []
    actions: list[int] = []
    over = False
    while not over:
        observations.append(np.append(observation, 1.0))
        actions.append(int(generator.random() < push_right(weights, observations[-1])))
        observation, _, fell, out_of_time, _ = environment.step(actions[-1])
        over = fell or out_of_time
    return np.array(observations), np.array(actions)


class Replay:
    """The last `capacity` episodes; who samples waits until `fresh` new ones have come."""

    def __init__(self, capacity: int, fresh: int) -> None:
        self._episodes: deque[Episode] = deque(maxlen=capacity)
        self._fresh, self._num_new, self._inserted = fresh, 0, threading.Condition()

    def insert(self, episode: Episode) -> None:
        with self._inserted:
            self._episodes.append(episode)
            self._num_new += 1
            self._inserted.notify()

    @rw.concurrent(2)  # it waits, and `insert` must run meanwhile
    def sample(self) -> list[Episode]:
        with self._inserted:
            rw.wait_for(self._inserted, lambda: self._num_new >= self._fresh)  # ends with the learner, if that dies
            self._num_new = 0
            return list(self._episodes)


class Learner:
    """Makes the actions of the best episodes more likely."""

    def __init__(self, replay: Replay) -> None:
        self._replay, self._weights = replay, np.zeros(5)

    @rw.concurrent(ACTORS)  # answered while `learn` runs
    def weights(self) -> np.ndarray:
        return self._weights

    def learn(self, num_steps: int) -> list[float]:
        """Returns the mean length of the episodes that each step saw."""
        return [self._step() for _ in range(num_steps)]

    def _step(self) -> float:
        episodes = sorted(self._replay.sample(), key=lambda episode: len(episode[1]))
        best = episodes[-max(1, len(episodes) // 5) :]
        observations, actions = (np.concatenate(parts) for parts in zip(*best, strict=True))
        weights = self._weights
        for _ in range(PASSES):
            error = actions - push_right(weights, observations)
            weights = weights + RATE * observations.T @ error / len(actions)
        self._weights = weights
        return float(np.mean([len(actions) for _, actions in episodes]))


def act(replay: Replay, learner: Learner) -> None:
    """Plays until the program is stopped."""
    generator = np.random.default_rng(rw.current_node().replica)
    environment = gymnasium.make("CartPole-v1")
    while not rw.stopping():
        replay.insert(play(environment, learner.weights(), generator))


def main(mode: rw.Mode | None = None) -> dict[str, Any]:
    program = rw.Program("actor-learner")
    replay = program.add(rw.Service(Replay, CAPACITY, FRESH), name="replay")
    learner = program.add(rw.Service(Learner, replay), name="learner")
    program.add(rw.Worker(act, replay, learner), name="actors", replicas=ACTORS)

    with program.launch(mode=mode) as running:
        lengths: list[float] = running.client("learner").learn(STEPS)
        weights: np.ndarray = running.client("learner").weights()

    generator = np.random.default_rng(1000)
    environment = gymnasium.make("CartPole-v1")
    final = float(np.mean([len(play(environment, weights, generator)[1]) for _ in range(20)]))
    for step in range(0, STEPS, 10):
        print(f"step {step:2d}  mean return {lengths[step]:5.1f}")
    print(f"the learned policy: mean return {final:.1f} over 20 new episodes (at most 500; at random about 22)")
    return {"first": lengths[0], "final": final}


if __name__ == "__main__":
    main()
