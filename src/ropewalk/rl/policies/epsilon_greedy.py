"""`EpsilonGreedy`: takes the action of the highest value, and now and then a random one; with and without memory.

Networks of a few linear layers are evaluated by numpy, where a call of torch would cost several times the arithmetic
(`ropewalk.rl.policies.numpy_forward`); all others by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.networks.noisy import NoisyLinear, draw_noise
from ropewalk.rl.policies.exploration import Exploration, JoinedExploration
from ropewalk.rl.policies.numpy_forward import numpy_forward
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.variables import Variables

NumpyValues: TypeAlias = Callable[[Observation], NDArray[np.float32]]
"""Values [N, A] of observations [N, ...]."""


class EpsilonGreedy(Policy):
    """Acts by the values of a network.

    For each environment, with probability epsilon the action is drawn uniformly from all; otherwise it is that of the
    highest value, the first of equals. With noisy layers, each call draws one noise for all environments, and
    evaluators act without noise.

    Args:
        network: values the actions; the policy keeps it and loads weights into it.
        exploration: the epsilon of each environment.
        evaluation_epsilon: the epsilon of evaluators; 0.001 in R2D2.
    """

    def __init__(
        self, network: ActionValueNetwork, exploration: Exploration, *, evaluation_epsilon: float = 0.0
    ) -> None:
        self._network = network.requires_grad_(requires_grad=False).eval()
        self._weights = ModuleArrays(self._network)
        self._noisy = [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]
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
    ) -> ActionChoice:
        """Choose an action for each of N environments; see `Policy.act`."""
        num_envs = len(first)
        if self._noisy:
            for layer in self._noisy:
                layer.train(not greedy)  # in evaluation mode they have no noise
            draw_noise(self._network, torch.Generator().manual_seed(int(rng.integers(2**63))))
        values, after = self._values(observation, first, state)
        best = values.argmax(-1)
        if greedy:
            epsilons = np.full(num_envs, self._evaluation_epsilon)
        else:
            epsilons = self._exploration.epsilons(self._progress, num_envs)
        # Both are drawn in every call, so that the generator's stream does not depend on the values.
        explores = rng.random(num_envs) < epsilons
        drawn = rng.integers(values.shape[-1], size=num_envs)
        return ActionChoice(np.where(explores, drawn, best), {}, after)

    def load(self, variables: Variables) -> None:
        """Act with these weights, and with the epsilons of their progress."""
        self._weights.load(variables.arrays)
        self._progress = variables.progress

    @property
    def group_part(self) -> Exploration:
        """How often its environments explore."""
        return self._exploration

    def joined(self, parts: Sequence[tuple[object, int]]) -> EpsilonGreedy:
        """Return this policy for the environments of several groups, each with its own epsilon; see `Policy.joined`."""
        policy = copy(self)
        policy._exploration = JoinedExploration(tuple(cast("Sequence[tuple[Exploration, int]]", parts)))
        return policy

    def _values(
        self, observation: Observation, first: NDArray[np.bool_], state: Mapping[str, Array]
    ) -> tuple[NDArray[np.float32], dict[str, Array]]:
        if self._numpy is not None:
            return self._numpy(observation), {}
        with torch.inference_mode():
            outputs, after = self._network.unroll(
                _one_step(observation),
                torch.tensor(first[None]),
                {name: torch.tensor(array) for name, array in state.items()},
            )
            values = self._network.returns.mean(outputs).squeeze(0)
        return values.numpy(), {name: tensor.numpy() for name, tensor in after.items()}


def numpy_values(network: ActionValueNetwork) -> NumpyValues | None:
    """Return the network's values as a function of numpy alone, or None where numpy cannot evaluate it.

    Like `numpy_forward`, it follows weights that are loaded into the network in place.
    """
    torso, head, returns = numpy_forward(network.torso), numpy_forward(network.head), network.returns
    if torso is None or head is None:
        return None

    def values(observation: Observation) -> NDArray[np.float32]:
        return returns.mean_numpy(head(torso(observation)))

    return values


def _one_step(observation: Observation) -> torch.Tensor | dict[str, torch.Tensor]:
    if isinstance(observation, dict):
        return {name: torch.tensor(array[None]) for name, array in observation.items()}
    return torch.tensor(observation[None])


__all__ = ["EpsilonGreedy", "numpy_values"]
