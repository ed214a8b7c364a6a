"""`ObservationActionReward`: shows the last action and the last reward beside the observation.

As in Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning (R2D2), 2019, section 2.3,
and in Acme's wrapper of the same name.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ropewalk.rl.environments.gymnasium_env import GymnasiumEnv
from ropewalk.rl.environments.spaces import is_a


class ObservationActionReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes the observation a dictionary with "last_action" and "last_reward".

    The observation itself is the entry "observation"; if it is a dictionary, its entries stay what they are. At the
    first step of an episode, both are zeros.

    | entry | float32 |
    |---|---|
    | "last_action" | Discrete: one-hot. MultiDiscrete, MultiBinary: one-hots side by side. Box: the action, flat |
    | "last_reward" | shape (1,) |

    Args:
        env: the environment to wrap; all wrappers that change its actions or rewards belong inside.

    Raises:
        ValueError: its action space is of another kind, or its observation has an entry of that name already.
    """

    def __init__(self, env: GymnasiumEnv) -> None:
        super().__init__(env)
        inner: Any = env.observation_space
        self._is_dict = is_a(inner, spaces.Dict)
        entries: dict[str, Any] = dict(inner.spaces) if self._is_dict else {"observation": inner}
        if taken := entries.keys() & {"last_action", "last_reward"}:
            raise ValueError(f"the observation has {', '.join(sorted(taken))} already; is it wrapped twice?")
        self._action: Any = env.action_space
        self._none, low, high = _bounds(self._action)
        self.observation_space = spaces.Dict(
            {
                **entries,
                "last_action": spaces.Box(low, high, dtype=np.float32),
                "last_reward": spaces.Box(-np.inf, np.inf, (1,), np.float32),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._shown(observation, self._none, 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(observation, self._encoded(action), reward), reward, terminated, truncated, info

    def _shown(self, observation: Any, action: NDArray[np.float32], reward: Any) -> dict[str, Any]:
        entries: dict[str, Any] = dict(observation) if self._is_dict else {"observation": observation}
        entries["last_action"] = action
        entries["last_reward"] = np.array([reward], np.float32)
        return entries

    def _encoded(self, action: Any) -> NDArray[np.float32]:
        if is_a(self._action, spaces.Box):
            return np.array(action, np.float32).ravel()
        encoded = np.zeros_like(self._none)
        chosen = np.ravel(np.subtract(action, getattr(self._action, "start", 0)))
        encoded[_offsets(self._action) + chosen] = 1
        return encoded


def _bounds(space: Any) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the entry before the first action, and the least and the largest values of the entry."""
    if is_a(space, spaces.Box):
        low, high = (np.array(bound, np.float32).ravel() for bound in (space.low, space.high))
        return np.clip(np.zeros_like(low), low, high), low, high
    size = int(_nums(space).sum())
    return np.zeros(size, np.float32), np.zeros(size, np.float32), np.ones(size, np.float32)


def _nums(space: Any) -> NDArray[np.int64]:
    """Return the numbers of values of each choice."""
    if is_a(space, spaces.Discrete):
        return np.array([space.n])
    if is_a(space, spaces.MultiDiscrete):
        return np.ravel(space.nvec).astype(np.int64)
    if is_a(space, spaces.MultiBinary):
        return np.full(math.prod(space.shape), 2)
    raise ValueError(
        f"the action space is {space}; the last action is shown for Discrete, MultiDiscrete, MultiBinary and Box"
    )


def _offsets(space: Any) -> NDArray[np.int64]:
    """Return where the one-hot of each choice begins."""
    nums = _nums(space)
    return np.cumsum(nums) - nums


__all__ = ["ObservationActionReward"]
