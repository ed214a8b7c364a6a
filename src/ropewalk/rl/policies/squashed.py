"""`SquashedPolicy`: draws actions from a Gaussian that tanh squashes (SAC)."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ropewalk.rl.networks.distributions import SquashedGaussian
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.canonical_policy import CanonicalPolicy


class SquashedPolicy(CanonicalPolicy):
    """Draws from the distribution whose parameters the network returns; an evaluator takes tanh of the mean.

    Args:
        actor: maps observations (N, ...) to parameters (N, 2 A).
        scaling: scaling of the environment's actions.
        distribution: distribution of canonical actions.
    """

    def __init__(self, actor: nn.Module, scaling: ActionScaling, distribution: SquashedGaussian) -> None:
        super().__init__(actor, scaling)
        self._distribution = distribution

    def choose(self, output: NDArray[np.float32], rng: np.random.Generator, *, greedy: bool) -> NDArray[np.float32]:
        """Return the actions, shape (N, A); see `CanonicalPolicy`."""
        action = self._distribution.mode(output) if greedy else self._distribution.sample(output, rng)[0]
        return cast("NDArray[np.float32]", action)


__all__ = ["SquashedPolicy"]
