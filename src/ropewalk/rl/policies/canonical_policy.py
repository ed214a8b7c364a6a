"""`CanonicalPolicy`: what policies of continuous actions share. They choose from -1 to 1 and scale to the bounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.networks.module_arrays import load_arrays
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.numpy_forward import numpy_forward
from ropewalk.rl.policies.policy import Choice, Policy
from ropewalk.rl.variables import Variables

Floats: TypeAlias = NDArray[np.float32]


class CanonicalPolicy(Policy):
    """Acts by a network without memory. Networks that numpy can evaluate are evaluated by numpy.

    Before the first update (version 0 of the weights), actions are drawn uniformly within the bounds, unless it acts
    greedily: replay then begins with actions of all kinds, whatever the network's first weights are.

    Args:
        actor: maps observations (N, ...) to numbers that tell the action; its weights are replaced by `load`.
        scaling: of the environment's actions.
    """

    def __init__(self, actor: nn.Module, scaling: ActionScaling) -> None:
        self._actor = actor.eval().requires_grad_(False)
        self._scaling = scaling
        self._evaluate = numpy_forward(actor)
        self._version = 0

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
    ) -> Choice:
        """Choose an action for each of N environments; see `Policy.act`."""
        del state
        if self._version == 0 and not greedy:
            uniform = rng.random((len(first), len(self._scaling.half)), dtype=np.float32)
            return Choice(self._scaling.to_environment(2 * uniform - 1))
        return Choice(self._scaling.to_environment(self.choose(self._output(observation), rng, greedy=greedy)))

    def load(self, variables: Variables) -> None:
        """Act with these weights from now on."""
        load_arrays(self._actor, variables.arrays)
        self._version = variables.version

    def _output(self, observation: Observation) -> Floats:
        if self._evaluate is not None:
            return self._evaluate(observation)
        with torch.no_grad():
            if isinstance(observation, dict):
                tensors = self._actor({name: torch.tensor(array) for name, array in observation.items()})
            else:
                tensors = self._actor(torch.tensor(observation))
        return cast("Floats", tensors.numpy())


__all__ = ["CanonicalPolicy"]
