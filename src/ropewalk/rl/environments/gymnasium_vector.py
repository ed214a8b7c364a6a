"""`GymnasiumVectorEnvironment`: a `gymnasium.vector.VectorEnv`, which steps its environments by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium.vector
import numpy as np

from ropewalk.rl.environments.environment import Steps, VectorEnvironment
from ropewalk.rl.environments.spaces import batched_action_encoder, spec_of_spaces
from ropewalk.rl.environments.spec import Array, Observation

GymnasiumVectorEnv: TypeAlias = "gymnasium.vector.VectorEnv[Any, Any, Any]"


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
        self.spec = spec_of_spaces(envs.single_observation_space, envs.single_action_space)
        self.num_envs = envs.num_envs
        self._envs = envs
        self._seed = seed
        self._encode = batched_action_encoder(envs.single_action_space)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._is_open = True

    def reset(self) -> Observation:
        observation, _ = self._envs.reset(seed=self._seed)
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._copied(observation)

    def step(self, action: Array) -> Steps:
        observation, reward, terminated, truncated, infos = self._envs.step(self._encode(action))
        mask = ~self._ended
        terminated = terminated & mask
        truncated = truncated & mask
        self._ended = terminated | truncated
        final = {int(env): _info_of(infos, int(env)) for env in np.flatnonzero(self._ended)} if infos else {}
        return Steps(
            self._copied(observation), np.where(mask, reward, 0).astype(np.float32), terminated, truncated, mask, final
        )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._envs.close()

    def _copied(self, observation: Any) -> Observation:
        """Return a copy: many vector environments return the same array in each step."""
        if isinstance(self.spec.observation, Mapping):
            return {name: np.array(observation[name], spec.dtype) for name, spec in self.spec.observation.items()}
        return np.array(observation, self.spec.observation.dtype)


def _info_of(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
    """Return one environment's part of the infos of a vector environment, where `_<name>` says which ones gave it."""
    return {
        name: _info_of(value, env) if isinstance(value, Mapping) else value[env]
        for name, value in infos.items()
        if f"_{name}" in infos and infos[f"_{name}"][env]
    }


__all__ = ["GymnasiumVectorEnv", "GymnasiumVectorEnvironment"]
