"""`GymnasiumVectorEnvironment`: a `gymnasium.vector.VectorEnv`, which steps its environments by itself."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium.vector
import numpy as np

from ropewalk.rl.environments.environment import Steps, VectorEnvironment
from ropewalk.rl.environments.spaces import AnySpace, batched_action_encoder, spec_of_spaces
from ropewalk.rl.environments.spec import Array, ArraySpec, Observation

GymnasiumVectorEnv: TypeAlias = Any
"""A `gymnasium.vector.VectorEnv`."""


class GymnasiumVectorEnvironment(VectorEnvironment):
    """Steps a vector environment of Gymnasium, such as a native one that computes all its environments at once.

    It is seeded once; its later episodes follow from its own generator, so that it cannot be brought back to a state
    (`resume`).

    Args:
        envs: a vector environment with autoreset mode NEXT_STEP; closed by `close`.
        seed: seed of its first reset.

    Raises:
        ValueError: it resets in another mode, or a space has no counterpart.
    """

    def __init__(self, envs: GymnasiumVectorEnv, seed: int) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode is not gymnasium.vector.AutoresetMode.NEXT_STEP:
            raise ValueError(
                f"{type(envs).__name__} has autoreset mode {getattr(mode, 'name', mode)}, and NEXT_STEP is needed, "
                "which keeps the last observation of each episode: make it with "
                "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP, or, if it resets that way by itself, "
                "say so in its metadata['autoreset_mode']"
            )
        observation_space: AnySpace = envs.single_observation_space
        action_space: AnySpace = envs.single_action_space
        self.spec = spec_of_spaces(observation_space, action_space)
        self.num_envs = envs.num_envs
        seen = self.spec.observation
        self._dtype = np.dtype(seen.dtype) if isinstance(seen, ArraySpec) else None
        self._dtypes = (
            {} if isinstance(seen, ArraySpec) else {name: np.dtype(spec.dtype) for name, spec in seen.items()}
        )
        self._envs = envs
        self._seed = seed
        self._encode = batched_action_encoder(action_space)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._is_open = True
        self._num_calls, self._is_called = 0, False

    def reset(self) -> Observation:
        self._is_called = True
        observation, _ = self._envs.reset(seed=self._seed)
        self._is_called = False
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._copied(observation)

    def step(self, action: Array) -> Steps:
        self._num_calls += 1
        self._is_called = True
        observation, rewards, terminations, truncations, infos = self._envs.step(self._encode(action))
        self._is_called = False
        reward = np.array(rewards, np.float32)
        terminated, truncated = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        mask = ~self._ended
        if np.count_nonzero(self._ended):  # these only began an episode, whatever they say of the step
            reward[self._ended] = 0
            terminated[self._ended] = truncated[self._ended] = False
        self._ended = terminated | truncated
        final = {env: _info_of(infos, env) for env in np.flatnonzero(self._ended).tolist()} if infos else {}
        return Steps(self._copied(observation), reward, terminated, truncated, mask, final)

    def call_under_way(self) -> str:
        if not self._is_called:
            return ""
        what = f"step {self._num_calls}" if self._num_calls else "reset"
        return f"{what} of the vector environment, seed {self._seed}"

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._envs.close()

    def _copied(self, observation: Any) -> Observation:
        """Return a copy: many vector environments return the same array in each step."""
        if self._dtype:
            return np.array(observation, self._dtype)
        return {name: np.array(observation[name], dtype) for name, dtype in self._dtypes.items()}


def _info_of(infos: Any, env: int) -> dict[str, Any]:
    """Return one environment's part of the infos of a vector environment, where `_<name>` says which ones gave it."""
    return {
        name: _info_of(value, env) if isinstance(value, dict) else value[env]
        for name, value in infos.items()
        if f"_{name}" in infos and infos[f"_{name}"][env]
    }


__all__ = ["GymnasiumVectorEnv", "GymnasiumVectorEnvironment"]
