"""Generalised advantage estimation.

Schulman et al.: High-Dimensional Continuous Control Using Generalized Advantage Estimation, 2016
(https://arxiv.org/abs/1506.02438), equation 16, for episodes of finite length:

    delta_t = r_t + gamma_t V(x_{t+1}) - V(x_t)    gamma_t = gamma (1 - terminated_t)
    advantage_t = delta_t + gamma_t lambda advantage_{t+1}
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.rl.losses.recursion import step_discounts, summed_backwards


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """Advantages and the returns that go with them, without gradient, shape (T, B) each.

    Attributes:
        advantages: advantages of the actions; 0 at masked steps.
        returns: advantages + values, what the values of observations are to become.
    """

    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def gae(
    *, reward: Tensor, terminated: Tensor, mask: Tensor, values: Tensor, discount: float, lambda_: float = 0.95
) -> AdvantageEstimate:
    """Return advantages and returns.

    Args:
        reward: shape (T, B).
        terminated: bool, shape (T, B).
        mask: bool, shape (T, B).
        values: V of the observations, shape (T+1, B).
        discount: gamma.
        lambda_: 0 is one step of reward, 1 all of them.
    """
    discounts = step_discounts(terminated, discount, values)
    differences = torch.where(mask, reward + discounts * values[1:] - values[:-1], 0.0)
    advantages = summed_backwards(differences, torch.where(mask, discounts * lambda_, 0.0))
    return AdvantageEstimate(advantages, advantages + values[:-1])


__all__ = ["AdvantageEstimate", "gae"]
