"""`DeterministicPolicy`: the action that a network returns, with Gaussian noise for exploration (TD3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.canonical_policy import CanonicalPolicy


class DeterministicPolicy(CanonicalPolicy):
    """Returns the network's action; unless it acts greedily, with noise, and clipped to the bounds.

    Args:
        actor: maps observations (N, ...) to canonical actions (N, A); ends with tanh.
        scaling: scaling of the environment's actions.
        noise: standard deviation of the noise, in canonical units: 0.1 is a twentieth of the distance of the bounds.
    """

    def __init__(self, actor: nn.Module, scaling: ActionScaling, noise: float) -> None:
        super().__init__(actor, scaling)
        self._noise = np.float32(noise)

    def choose(self, output: NDArray[np.float32], rng: np.random.Generator, *, greedy: bool) -> NDArray[np.float32]:
        """Return the actions, shape (N, A); see `CanonicalPolicy`."""
        if greedy or self._noise == 0:
            return output
        noisy = output + self._noise * rng.standard_normal(output.shape, np.float32)
        return np.minimum(np.maximum(noisy, np.float32(-1)), np.float32(1))


__all__ = ["DeterministicPolicy"]
