"""`DistributionPolicy`: draws actions from the distribution that a network without memory gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.policies.memoryless_forward import memoryless_forward
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.variables import Variables


class DistributionPolicy(Policy):
    """Acts by a distribution, with the extra "log_prob"; an evaluator takes the distribution's mode.

    Args:
        actor: maps observations (N, ...) to parameters (N, P); its weights are replaced by `load`.
        distribution: what the parameters mean.
    """

    def __init__(self, actor: nn.Module, distribution: ActionDistribution) -> None:
        self._actor = actor.eval().requires_grad_(False)
        self._weights = ModuleArrays(self._actor)
        self._distribution = distribution
        self._forward = memoryless_forward(actor)

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
        del first, state
        params = self._forward(observation)
        if greedy:
            return ActionChoice(self._distribution.mode(params))
        action, log_prob = self._distribution.sample(params, rng)
        return ActionChoice(action, {"log_prob": log_prob})

    def load(self, variables: Variables) -> None:
        """Act with these weights from now on."""
        self._weights.load(variables.arrays)


__all__ = ["DistributionPolicy"]
