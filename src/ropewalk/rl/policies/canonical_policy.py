"""`CanonicalPolicy`: what policies of continuous actions share. They choose from -1 to 1 and scale to the bounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.memoryless_forward import memoryless_forward
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.variables import Variables

Floats: TypeAlias = NDArray[np.float32]

NUM_UPDATES = "num_updates"
"""The variable that says how many updates the weights have had; versions also count what was published without one."""


class CanonicalPolicy(Policy):
    """Acts by a network without memory.

    Where variables say that weights had no update yet, actions are drawn uniformly within the bounds, unless it acts
    greedily: replay then begins with actions of all kinds, whatever the network's first weights are.

    Args:
        actor: maps observations (N, ...) to numbers that tell the action; its weights are replaced by `load`.
        scaling: scaling of the environment's actions.
    """

    def __init__(self, actor: nn.Module, scaling: ActionScaling) -> None:
        self._actor = actor.eval().requires_grad_(False)
        self._weights = ModuleArrays(self._actor)
        self._scaling = scaling
        self._forward = memoryless_forward(actor)
        self._is_updated = True

    @abstractmethod
    def choose(self, output: Floats, rng: np.random.Generator, *, greedy: bool) -> Floats:
        """Return canonical actions, shape (N, A).

        Args:
            output: what the network returned, shape (N, ...).
            rng: the only source of randomness.
            greedy: without exploration.
        """

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
        del state
        if not (self._is_updated or greedy):
            uniform = rng.random((len(first), len(self._scaling.half)), dtype=np.float32)
            return ActionChoice(self._scaling.to_environment(2 * uniform - 1))
        return ActionChoice(self._scaling.to_environment(self.choose(self._forward(observation), rng, greedy=greedy)))

    def load(self, variables: Variables) -> None:
        """Act with these weights from now on."""
        arrays = dict(variables.arrays)
        self._is_updated = NUM_UPDATES not in arrays or int(arrays.pop(NUM_UPDATES)) > 0
        self._weights.load(arrays)


__all__ = ["NUM_UPDATES", "CanonicalPolicy"]
