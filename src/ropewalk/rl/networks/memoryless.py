"""Torsos without memory, for agents that learn from single transitions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.normalisation import refuse_statistics
from ropewalk.rl.networks.torso import FeedForwardTorso, ObservationTensor, Torso, TorsoFactory, torso_of


class MemorylessTorso(nn.Module):
    """A torso without memory as a plain map of observations (B, ...) to features (B, F)."""

    def __init__(self, torso: Torso) -> None:
        super().__init__()
        self.torso, self.features = torso, torso.features

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features, shape (B, F)."""
        if isinstance(observation, Tensor):
            features, _ = self.torso.unroll(observation.unsqueeze(0), _first(len(observation), observation.device), {})
        else:
            one = next(iter(observation.values()))
            unrolled = {name: tensor.unsqueeze(0) for name, tensor in observation.items()}
            features, _ = self.torso.unroll(unrolled, _first(len(one), one.device), {})
        return features.squeeze(0)


def _first(batch: int, device: torch.device) -> Tensor:
    return torch.zeros((1, batch), dtype=torch.bool, device=device)


def without_memory(network: TorsoFactory, spec: EnvironmentSpec, agent: str) -> FeedForwardTorso | MemorylessTorso:
    """Make what maps observations (B, ...) to features.

    Raises:
        ValueError: it has memory, or statistics of observations, which the agent does not train.
    """
    torso = torso_of(network, spec)
    if state := torso.initial_state(1):
        raise ValueError(
            f"{agent} learns from single transitions, but the network has the recurrent state {', '.join(state)}; use "
            "a network without memory, such as rl.MLP((256, 256))"
        )
    refuse_statistics(torso, agent)
    return torso if isinstance(torso, FeedForwardTorso) else MemorylessTorso(torso)


__all__ = ["MemorylessTorso", "without_memory"]
