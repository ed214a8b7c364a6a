"""`StochasticPolicy`: draws actions from the distribution that an actor-critic network gives for each observation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.policies.numpy_forward import numpy_forward
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.variables import Variables


class StochasticPolicy(Policy):
    """Acts by a distribution, with the extra "log_prob"; an evaluator takes the distribution's mode.

    A network without memory that numpy can evaluate is evaluated by numpy, others by torch. Actions are drawn by numpy
    in either case, so they depend on `rng` and on no other source of randomness.

    Args:
        model: gives the distributions; the policy owns it, and `load` changes its weights.
        distribution: what the parameters that the model gives mean.
    """

    def __init__(self, model: ActorCritic, distribution: ActionDistribution) -> None:
        self._model = model.eval().requires_grad_(False)
        self._weights = ModuleArrays(self._model)
        self._distribution = distribution
        self._forward = numpy_forward(nn.Sequential(model.torso, model.policy))
        self._keeps_values = any(name.startswith("value.") for name in model.initial_state(1))

    def initial_state(self, num_envs: int) -> dict[str, Array]:
        """See `Policy`."""
        return {name: tensor.numpy() for name, tensor in self._model.initial_state(num_envs).items()}

    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> ActionChoice:
        """See `Policy`. A greedy choice has no extras."""
        if self._forward:
            params, after = self._forward(observation), dict[str, Array]()
        else:
            params, after = self._by_torch(observation, first, state)
        if greedy:
            return ActionChoice(self._distribution.mode(params), state=after)
        action, log_prob = self._distribution.sample(params, rng)
        return ActionChoice(action, {"log_prob": log_prob}, after)

    def _by_torch(
        self, observation: Observation, first: NDArray[np.bool_], state: Mapping[str, Array]
    ) -> tuple[NDArray[np.float32], dict[str, Array]]:
        """Unroll the network by one step; return parameters, and the recurrent state after it."""
        inputs = (
            {name: _one_step(array) for name, array in observation.items()}
            if isinstance(observation, dict)
            else _one_step(observation)
        )
        before = {name: torch.as_tensor(array) for name, array in state.items()}
        with torch.inference_mode():
            if self._keeps_values:  # the values' own memory has to go on as well, for the learner to start from it
                params, _, after = self._model.unroll(inputs, _one_step(first), before)
            else:
                features, after = self._model.torso.unroll(inputs, _one_step(first), before)
                params = self._model.policy(features)
        return params[0].numpy(), {name: tensor.numpy() for name, tensor in after.items()}

    def load(self, variables: Variables) -> None:
        """See `Policy`."""
        self._weights.load(variables.arrays)


def _one_step(array: Array) -> Tensor:
    return torch.as_tensor(array).unsqueeze(0)


__all__ = ["StochasticPolicy"]
