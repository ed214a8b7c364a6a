"""`ActionValueNetwork`: a torso and a head that values each of a discrete set of actions.

The head is linear, or has one hidden layer. With `dueling` it has two streams (Wang et al. 2016, equation 9), one for
the value of the state and one for the advantage of each action over the mean of all:

    outputs[a] = value + advantage[a] - mean over b of advantage[b]

which for distributions holds for the outputs of each atom or quantile (Hessel et al. 2018, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ropewalk.rl.networks.noisy_linear import NoisyLinear
from ropewalk.rl.networks.torso import Torso, TorchObservation
from ropewalk.rl.networks.value_distributions import ReturnKind, ScalarReturn


class ActionValueHead(nn.Module):
    """Maps features to `returns.size` outputs for each action.

    Args:
        features: F, size of the features.
        num_actions: A.
        returns: what the outputs mean.
        dueling: whether there are two streams.
        noisy: whether its layers carry noise.
        hidden: size of a hidden layer with ReLU in each stream; 0 for none.
    """

    def __init__(
        self,
        features: int,
        num_actions: int,
        *,
        returns: ReturnKind,
        dueling: bool = False,
        noisy: bool = False,
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self.num_actions, self.size = num_actions, returns.size
        self.advantage = _stream(features, hidden, num_actions * self.size, noisy=noisy)
        self.value = _stream(features, hidden, self.size, noisy=noisy) if dueling else None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features [..., F] to outputs [..., A, size]."""
        advantage = self.advantage(features).unflatten(-1, (self.num_actions, self.size))
        if self.value is None:
            return advantage
        return self.value(features).unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)


class ActionValueNetwork(nn.Module):
    """Values of actions for observations, with memory if the torso has one.

    Args:
        torso: turns observations into features.
        num_actions: A.
        returns: what the outputs mean; the mean alone by default.
        dueling: see `ActionValueHead`.
        noisy: see `ActionValueHead`.
        hidden: see `ActionValueHead`.
    """

    def __init__(
        self,
        torso: Torso,
        num_actions: int,
        *,
        returns: ReturnKind | None = None,
        dueling: bool = False,
        noisy: bool = False,
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self.torso = torso
        self.returns: ReturnKind = ScalarReturn() if returns is None else returns
        self.head = ActionValueHead(
            torso.features, num_actions, returns=self.returns, dueling=dueling, noisy=noisy, hidden=hidden
        )

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        """Return the torso's recurrent state at the first step of an episode, shape (batch, ...) each."""
        return self.torso.initial_state(batch)

    def unroll(
        self, observation: TorchObservation, first: torch.Tensor, state: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return outputs [T, B, A, size] of T steps and the state after them; arguments as in `Torso.unroll`."""
        features, state = self.torso.unroll(observation, first, state)
        return self.head(features), state

    def forward(self, observation: TorchObservation) -> torch.Tensor:
        """Return outputs [B, A, size] of observations [B, ...], for networks without memory."""
        if isinstance(observation, torch.Tensor):
            step, rows = observation.unsqueeze(0), observation.shape[0]
        else:
            step = {name: entry.unsqueeze(0) for name, entry in observation.items()}
            rows = next(iter(observation.values())).shape[0]
        first = torch.zeros((1, rows), dtype=torch.bool)
        outputs, _ = self.unroll(step, first, {})
        return outputs.squeeze(0)


def _stream(features: int, hidden: int, outputs: int, *, noisy: bool) -> nn.Module:
    layer = NoisyLinear if noisy else nn.Linear
    if hidden == 0:
        return layer(features, outputs)
    return nn.Sequential(layer(features, hidden), nn.ReLU(), layer(hidden, outputs))


__all__ = ["ActionValueHead", "ActionValueNetwork"]
