"""Returns of n steps.

    G_t = r_t + gamma_t r_{t+1} + ... + gamma_t ... gamma_{t+n-1} V(x_{t+n}),  gamma_t = gamma (1 - terminated_t)

Sutton and Barto: Reinforcement Learning, 2nd edition, 2018, equation 7.1. The last n - 1 returns have fewer steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.rl.losses.recursion import step_discounts


@torch.no_grad()
def n_step_returns(
    *, reward: Tensor, terminated: Tensor, mask: Tensor, values: Tensor, discount: float, n: int
) -> Tensor:
    """Return G_t, shape (T, B); V(x_t) at masked steps.

    Args:
        reward: shape (T, B).
        terminated: bool, shape (T, B).
        mask: bool, shape (T, B).
        values: V of the observations, shape (T+1, B).
        discount: gamma.
        n: steps of reward before the value is used.

    Raises:
        ValueError: n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n-step returns need n >= 1, not {n}")
    discounts = step_discounts(terminated, discount, values)
    returns = values
    for _ in range(n):  # each round adds one step of reward to every return
        steps = torch.where(mask, reward + discounts * returns[1:], values[:-1])
        returns = torch.cat([steps, values[-1:]])
    return returns[:-1]


__all__ = ["n_step_returns"]
