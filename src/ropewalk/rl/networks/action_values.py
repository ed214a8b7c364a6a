"""`ActionValueNetwork`: a torso and a head that values each discrete action, which is the network of DQN and R2D2."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ropewalk.rl.networks.heads import QHead
from ropewalk.rl.networks.torso import ObservationTensor, State, Torso
from ropewalk.rl.networks.value_distributions import ReturnKind, ScalarReturn


class ActionValueNetwork(nn.Module):
    """Values of actions for observations, with memory if the torso has one.

    Outputs have the shape [..., A] with `ScalarReturn` and [..., A, Z] otherwise.

    Args:
        torso: turns observations into features.
        num_actions: A.
        returns: what the outputs mean; the mean alone by default.
        dueling: see `QHead`.
        noisy: see `QHead`.
        hidden: see `QHead`.
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
        self.head: QHead = QHead(
            torso.features, num_actions, self.returns.size, dueling=dueling, noisy=noisy, hidden=hidden
        )

    def initial_state(self, batch: int) -> State:
        """Return the torso's recurrent state at the first step of an episode, shape (batch, ...) each."""
        return self.torso.initial_state(batch)

    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, State]:
        """Return the outputs of T steps, [T, B, ...], and the state after them; arguments as in `Torso.unroll`."""
        features, after = self.torso.unroll(observation, first, state)
        return self.head(features), after

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return the outputs of observations [B, ...], for networks without memory."""
        if isinstance(observation, Tensor):
            step: ObservationTensor = observation.unsqueeze(0)
            rows = observation.shape[0]
        else:
            step = {name: entry.unsqueeze(0) for name, entry in observation.items()}
            rows = next(iter(observation.values())).shape[0]
        outputs, _ = self.unroll(step, torch.zeros((1, rows), dtype=torch.bool), {})
        return outputs.squeeze(0)


__all__ = ["ActionValueNetwork"]
