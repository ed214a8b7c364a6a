"""Heads: what turns the features of a torso into parameters of actions, values, and values of actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ropewalk.rl.networks.distributions import ActionDistribution, DiagonalGaussian
from ropewalk.rl.networks.initialisation import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN, orthogonal
from ropewalk.rl.networks.noisy import NoisyLinear


class PolicyHead(nn.Module):
    """A linear layer to the parameters of a distribution, orthogonal with gain 0.01, so that all actions are likely.

    Args:
        features: size of its input.
        distribution: says how many parameters there are.
        gain: gain of the orthogonal initialisation.
    """

    def __init__(self, features: int, distribution: ActionDistribution, gain: float = POLICY_GAIN) -> None:
        super().__init__()
        self.linear: nn.Linear = orthogonal(nn.Linear(features, distribution.size), gain)

    def forward(self, features: Tensor) -> Tensor:
        """Return parameters, shape (..., P), of features, shape (..., F)."""
        return self.linear(features)


class GaussianHead(nn.Module):
    """Means by a linear layer, with deviations that are parameters and do not depend on the observation (PPO).

    Args:
        features: size of its input.
        num: A, number of components.
        log_std: initial logarithm of the deviations.
        gain: gain of the orthogonal initialisation.
    """

    def __init__(self, features: int, num: int, log_std: float = 0.0, gain: float = POLICY_GAIN) -> None:
        super().__init__()
        self.linear: nn.Linear = orthogonal(nn.Linear(features, num), gain)
        self.log_std = nn.Parameter(torch.full((num,), log_std))

    def forward(self, features: Tensor) -> Tensor:
        """Return parameters of a `DiagonalGaussian`, shape (..., 2 A), of features, shape (..., F)."""
        mean = self.linear(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


class ValueHead(nn.Module):
    """A linear layer to one number, orthogonal with gain 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear: nn.Linear = orthogonal(nn.Linear(features, 1), VALUE_GAIN)

    def forward(self, features: Tensor) -> Tensor:
        """Return values, shape (...), of features, shape (..., F)."""
        return self.linear(features).squeeze(-1)


class QHead(nn.Module):
    """Values of discrete actions, or a distribution of the value of each.

    Wang et al.: Dueling Network Architectures, 2016 (https://arxiv.org/abs/1511.06581), equation 9: value + advantage -
    mean advantage.

    Args:
        features: size of its input.
        num_actions: A.
        num_atoms: Z, numbers for each action: 1 for its value, more for logits of atoms (C51) or quantiles.
        dueling: value and advantages apart.
        noisy: with noise in the weights; see `NoisyLinear`.
        hidden: units of a layer with ReLU before each output, as in Rainbow; 0: none.
    """

    def __init__(
        self,
        features: int,
        num_actions: int,
        num_atoms: int = 1,
        *,
        dueling: bool = False,
        noisy: bool = False,
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self.num_actions: int = num_actions
        self.num_atoms: int = num_atoms
        self.advantage: nn.Module = _stream(features, num_actions * num_atoms, noisy, hidden)
        self.value: nn.Module | None = _stream(features, num_atoms, noisy, hidden) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """Return values, shape (..., A), or (..., A, Z) with several atoms, of features, shape (..., F)."""
        values = self.advantage(features).unflatten(-1, (self.num_actions, self.num_atoms))
        if self.value is not None:
            values = self.value(features).unsqueeze(-2) + values - values.mean(-2, keepdim=True)
        return values.squeeze(-1) if self.num_atoms == 1 else values


def policy_head(features: int, distribution: ActionDistribution) -> nn.Module:
    """Return the head of PPO, A2C and IMPALA: deviations of a `DiagonalGaussian` do not depend on the observation."""
    if isinstance(distribution, DiagonalGaussian):
        return GaussianHead(features, distribution.num)
    return PolicyHead(features, distribution)


def _stream(features: int, outputs: int, noisy: bool, hidden: int) -> nn.Module:
    def linear(inputs: int, units: int, gain: float) -> nn.Module:
        return NoisyLinear(inputs, units) if noisy else orthogonal(nn.Linear(inputs, units), gain)

    if not hidden:
        return linear(features, outputs, VALUE_GAIN)
    return nn.Sequential(linear(features, hidden, HIDDEN_GAIN), nn.ReLU(), linear(hidden, outputs, VALUE_GAIN))


__all__ = ["GaussianHead", "PolicyHead", "QHead", "ValueHead", "policy_head"]
