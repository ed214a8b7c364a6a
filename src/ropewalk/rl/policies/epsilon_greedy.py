"""`EpsilonGreedy`: takes the action of the highest value, and now and then a random one; with and without memory.

Networks of a few linear layers are evaluated by numpy, where a call of torch would cost several times the arithmetic
(`ropewalk.rl.policies.numpy_forward`); all others by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.module_arrays import load_arrays
from ropewalk.rl.networks.noisy import NoisyLinear, draw_noise
from ropewalk.rl.policies.exploration import Exploration
from ropewalk.rl.policies.numpy_forward import numpy_forward
from ropewalk.rl.policies.policy import Choice, Policy
from ropewalk.rl.variables import Variables

NumpyValues: TypeAlias = Callable[[Observation], NDArray[np.float32]]
"""Values [N, A] of observations [N, ...]."""


class EpsilonGreedy(Policy):
    """Acts by the values of a network.

    For each environment, with probability epsilon the action is drawn uniformly from all; otherwise it is the one of
    the highest value, the first of equals. With noisy layers, each call draws one noise for all environments; evaluators
    act without noise.

    Args:
        network: values the actions; the policy keeps it and loads weights into it.
        exploration: the epsilon of each environment.
        evaluation_epsilon: the epsilon of evaluators; 0.001 in R2D2.
    """

    def __init__(
        self, network: ActionValueNetwork, exploration: Exploration, *, evaluation_epsilon: float = 0.0
    ) -> None:
        self._network = network
        self._exploration = exploration
        self._evaluation_epsilon = evaluation_epsilon
        self._progress = 0.0
        self._numpy = numpy_values(network)

    def initial_state(self, num_envs: int) -> dict[str, Array]:
        """Return the network's recurrent state at the first step of an episode, shape (num_envs, ...) each."""
        return {name: tensor.numpy() for name, tensor in self._network.initial_state(num_envs).items()}

    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> Choice:
        """Choose an action for each of N environments; see `Policy.act`."""
        num_envs = len(first)
        set_noise(self._network, None if greedy else rng)
        values, after = self._values(observation, first, state)
        best = values.argmax(-1)
        if greedy:
            epsilons = np.full(num_envs, self._evaluation_epsilon)
        else:
            epsilons = self._exploration.epsilons(self._progress, num_envs)
        # Both are drawn in every call, so that the generator's stream does not depend on the values.
        explores = rng.random(num_envs) < epsilons
        drawn = rng.integers(values.shape[-1], size=num_envs)
        return Choice(np.where(explores, drawn, best), {}, after)

    def load(self, variables: Variables) -> None:
        """Act with these weights, and with the epsilons of their progress."""
        load_arrays(self._network, variables.arrays)
        self._progress = variables.progress
        self._numpy = numpy_values(self._network)

    def _values(
        self, observation: Observation, first: NDArray[np.bool_], state: Mapping[str, Array]
    ) -> tuple[NDArray[np.float32], dict[str, Array]]:
        if self._numpy is not None:
            return self._numpy(observation), {}
        with torch.inference_mode():
            outputs, after = self._network.unroll(
                _one_step(observation),
                torch.from_numpy(np.array(first[None])),
                {name: torch.from_numpy(np.array(array)) for name, array in state.items()},
            )
            values = self._network.returns.mean(outputs).squeeze(0)
        return values.numpy(), {name: tensor.numpy() for name, tensor in after.items()}


def numpy_values(network: ActionValueNetwork) -> NumpyValues | None:
    """Return the network's values as a function of numpy alone, or None where numpy cannot evaluate it.

    The function has the weights of this moment.
    """
    torso = numpy_forward(network.torso)
    advantage_stream = numpy_forward(network.head.advantage)
    value_stream = None if network.head.value is None else numpy_forward(network.head.value)
    if torso is None or advantage_stream is None or (network.head.value is not None and value_stream is None):
        return None
    shape, returns = (-1, network.head.num_actions, network.head.size), network.returns

    def values(observation: Observation) -> NDArray[np.float32]:
        features = torso(observation)
        outputs = advantage_stream(features).reshape(shape)
        if value_stream is not None:
            outputs = value_stream(features)[:, None] + outputs - outputs.mean(-2, keepdims=True)
        return returns.mean_numpy(outputs)

    return values


def _one_step(observation: Observation) -> torch.Tensor | dict[str, torch.Tensor]:
    if isinstance(observation, dict):
        return {name: torch.from_numpy(np.array(array[None])) for name, array in observation.items()}
    return torch.from_numpy(np.array(observation[None]))


__all__ = ["EpsilonGreedy", "numpy_values"]
