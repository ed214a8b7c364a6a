"""Environments that do what their script says."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def listed(observation: Any) -> Any:
    """Return an observation, which is one array, as lists."""
    assert isinstance(observation, np.ndarray)
    return observation.tolist()


class Scripted(gymnasium.Env[Any, Any]):
    """Shows (episode, step) and ends its episodes as the script says; all observations are one buffer.

    Args:
        script: a letter for each episode and its number of steps: "t3" is terminated, "c2" is truncated after 2 steps,
            "b1" is both; the last one is repeated. The reward of step k is k.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, *script: str) -> None:
        self.script = script
        self.episode, self.time = -1, 0
        self.seeds: list[int | None] = []
        self.actions: list[list[Any]] = []
        self.is_closed = False
        self.buffer = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.seeds.append(seed)
        self.actions.append([])
        self.buffer[:] = self.episode, 0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.actions[-1].append(action)
        self.buffer[:] = self.episode, self.time
        kind, length = self.ending()
        is_over = self.time == length
        return (
            self.buffer,
            float(self.time),
            is_over and kind in "tb",
            is_over and kind in "cb",
            {"is_success": is_over, "name": "scripted"},
        )

    def ending(self) -> tuple[str, int]:
        text = self.script[min(self.episode, len(self.script) - 1)]
        return text[0], int(text[1:])

    def close(self) -> None:
        self.is_closed = True


class Faulty(gymnasium.Env[Any, Any]):
    """Raises in a step or a reset that it is told; counts how often it was made."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, step: int = 0, resets: int = 0) -> None:
        """Raise in this step of every episode (0: in none), and in the first resets."""
        self.fatal_step, self.bad_resets = step, resets
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.bad_resets:
            self.bad_resets -= 1
            raise ValueError("no level for this seed")
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.time == self.fatal_step:
            raise ZeroDivisionError("the ball left the table")
        return np.full(1, self.time, np.float32), 1.0, False, self.time == 6, {}
