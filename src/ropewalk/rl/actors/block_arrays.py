"""`BlockArrays`: the columns of a block while it is being filled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.environment import Steps
from ropewalk.rl.environments.spec import Array, EnvironmentSpec, Observation
from ropewalk.rl.policies.policy import ActionChoice


class BlockArrays:
    """Allocates the columns of a block once, and writes one row of each in every step.

    Args:
        spec: observations and actions of the environment, by shape and type.
        num_steps: T.
        num_envs: N.
        state: recurrent state before step 0, copied.
    """

    def __init__(self, spec: EnvironmentSpec, num_steps: int, num_envs: int, state: Mapping[str, Array]) -> None:
        self._shape = (num_steps, num_envs)
        self._action_shape = (num_envs, *spec.action_array.shape)
        self._observations: dict[str, Array] = {
            name: np.empty((num_steps + 1, num_envs, *array.shape), array.dtype)
            for name, array in spec.observation_columns.items()
        }
        self.action: Array = np.empty((num_steps, *self._action_shape), spec.action_array.dtype)
        self.first = np.empty((num_steps + 1, num_envs), np.bool_)
        self.reward = np.empty(self._shape, np.float32)
        self.terminated = np.empty(self._shape, np.bool_)
        self.truncated = np.empty(self._shape, np.bool_)
        self.mask = np.empty(self._shape, np.bool_)
        self._extras: dict[str, Array] = {}
        self._state = {f"state.{name}": np.array(array) for name, array in state.items()}

    def write_observation(self, row: int, observation: Observation, first: NDArray[np.bool_]) -> None:
        """Write what is acted on in step `row`."""
        self.first[row] = first
        if isinstance(observation, dict):
            for name, array in observation.items():
                self._observations[f"observation.{name}"][row] = array
        else:
            self._observations["observation"][row] = observation

    def write_choice(self, step: int, choice: ActionChoice) -> None:
        """Write what was chosen in a step.

        Raises:
            ValueError: actions or extras have another shape than they must, or than in the steps before.
        """
        if step == 0:
            self._begin(choice)
        self.action[step] = choice.action
        for name, array in self._extras.items():
            array[step] = choice.extras[name]

    def write_steps(self, step: int, steps: Steps) -> None:
        """Write what a step led to, without the observation."""
        self.reward[step] = steps.reward
        self.terminated[step] = steps.terminated
        self.truncated[step] = steps.truncated
        self.mask[step] = steps.mask

    def columns(self) -> dict[str, Array]:
        """Return the columns of the block."""
        return {
            **self._observations,
            "first": self.first,
            "action": self.action,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "mask": self.mask,
            **self._extras,
            **self._state,
        }

    def _begin(self, choice: ActionChoice) -> None:
        if choice.action.shape != self._action_shape:
            raise ValueError(
                f"the policy chose actions of shape {choice.action.shape}, and {self._action_shape} is needed: "
                "one row for each environment"
            )
        for name, array in choice.extras.items():
            if array.shape[:1] != self._shape[1:]:
                raise ValueError(
                    f"the policy returned the extra {name!r} with shape {array.shape}; its first axis must have "
                    f"{self._shape[1]} entries, one for each environment"
                )
            self._extras[name] = np.empty((self._shape[0], *array.shape), array.dtype)


__all__ = ["BlockArrays"]
