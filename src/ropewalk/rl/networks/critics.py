"""`Critics`: two estimates Q(x, a) of the return of continuous actions, of which the lower counts (SAC, TD3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.initialisation import VALUE_GAIN, orthogonal
from ropewalk.rl.networks.memoryless import without_memory
from ropewalk.rl.networks.mlp import MLPTorso
from ropewalk.rl.networks.stacked import stacked
from ropewalk.rl.networks.torso import ObservationTensor, TorsoFactory, WrappedTorso

HEAD_UNITS = 256
"""Units of the hidden layer that joins the action to the features of observations that are not vectors."""


class Critics(nn.Module):
    """Estimates of Q(x, a), each with weights of its own.

    Where the observation is a vector of floats, the network sees it joined with the action. Otherwise (images,
    dictionaries) it sees the observation, and a hidden layer joins its features with the action. Perceptrons are
    evaluated together, see `ropewalk.rl.networks.stacked`.

    Args:
        network: makes the torso, once for each estimate.
        spec: observations and actions, which are continuous.
        num: C, the number of estimates.
    """

    def __init__(self, network: TorsoFactory, spec: EnvironmentSpec, num: int = 2) -> None:
        super().__init__()
        self._joins = is_vector(spec)
        make = _joined_critic if self._joins else _SplitCritic
        critics = [make(network, spec) for _ in range(num)]
        together = stacked(critics) if self._joins else None
        self._num, self._is_stacked = num, together is not None
        self.body: nn.Module = nn.ModuleList(critics) if together is None else together

    def forward(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """Return estimates, shape (C, B).

        Args:
            observation: shape (B, ...).
            action: canonical, each entry from -1 to 1; shape (B, A).
        """
        if not self._joins:
            return torch.stack([critic(observation, action).squeeze(-1) for critic in self._critics()])
        joined = torch.cat([cast("Tensor", observation), action], dim=-1)
        if self._is_stacked:
            return self.body(joined.expand(self._num, *joined.shape)).squeeze(-1)
        return torch.stack([critic(joined).squeeze(-1) for critic in self._critics()])

    def _critics(self) -> nn.ModuleList:
        return cast("nn.ModuleList", self.body)


def is_vector(spec: EnvironmentSpec) -> bool:
    """Whether observations are vectors of floats."""
    observation = spec.observation
    return isinstance(observation, ArraySpec) and len(observation.shape) == 1 and observation.dtype.startswith("float")


def _joined_critic(network: TorsoFactory, spec: EnvironmentSpec) -> nn.Sequential:
    observation = cast("ArraySpec", spec.observation)
    size = observation.shape[0] + spec.action_array.shape[0]
    try:
        torso = without_memory(network, EnvironmentSpec(ArraySpec((size,)), spec.action), "a critic of actions")
    except Exception as error:
        error.add_note(
            f"critics of SAC and TD3 read the observation joined with the action, {size} numbers: a network takes its "
            "size from the spec that it is made for, as spec.observation.shape[0]"
        )
        raise
    body: nn.Module = torso
    if isinstance(torso, MLPTorso):
        body = torso.body
    elif isinstance(torso, WrappedTorso):
        body = torso.module
    return nn.Sequential(body, orthogonal(nn.Linear(torso.features, 1), VALUE_GAIN))


class _SplitCritic(nn.Module):
    """Features of the observation, joined with the action by a hidden layer."""

    def __init__(self, network: TorsoFactory, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.torso = without_memory(network, spec, "a critic of actions")
        size = self.torso.features + spec.action_array.shape[0]
        self.head = nn.Sequential(
            orthogonal(nn.Linear(size, HEAD_UNITS)), nn.ReLU(), orthogonal(nn.Linear(HEAD_UNITS, 1), VALUE_GAIN)
        )

    def forward(self, observation: Tensor | Mapping[str, Tensor], action: Tensor) -> Tensor:
        return self.head(torch.cat([self.torso(observation), action], dim=-1))


__all__ = ["Critics", "is_vector"]
