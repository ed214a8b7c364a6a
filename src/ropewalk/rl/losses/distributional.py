"""Distributions of returns: C51's projection, and quantile regression.

Bellemare, Dabney, Munos: A Distributional Perspective on Reinforcement Learning, 2017
(https://arxiv.org/abs/1707.06887), algorithm 1. Dabney et al.: Distributional Reinforcement Learning with Quantile
Regression, 2018 (https://arxiv.org/abs/1710.10044), equations 9 and 10.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ropewalk.rl.losses.td import huber


@torch.no_grad()
def categorical_projection(next_probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Return the probabilities of reward + discount z on the atoms, shape (B, Z); each row sums to 1.

    Args:
        next_probs: probabilities of the atoms at the next observation, shape (B, Z).
        reward: shape (B,).
        discount: the whole factor of the bootstrap value, shape (B,), 0 after a termination.
        support: the atoms, ascending at equal distances, shape (Z,).
    """
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
    moved = moved.clamp(support[0], support[-1])
    # A triangle as wide as two distances around each atom: what lies between two atoms is divided between them.
    distance = (support[-1] - support[0]) / (len(support) - 1)
    shares = (1 - (moved.unsqueeze(-1) - support).abs() / distance).clamp(0, 1)
    return (next_probs.unsqueeze(-1) * shares).sum(-2)


def categorical_losses(logits: Tensor, target_probs: Tensor) -> Tensor:
    """Return the cross-entropy of each item, shape (B,); no gradient flows to the targets.

    Args:
        logits: logits of the atoms, for the actions taken, shape (B, Z).
        target_probs: probabilities of `categorical_projection`, shape (B, Z).
    """
    return -(target_probs.detach() * functional.log_softmax(logits, dim=-1)).sum(-1)


def quantile_losses(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss of each item, shape (B,): sum over quantiles, mean over targets.

    Args:
        quantiles: quantiles of the actions taken, at (2 i + 1) / (2 Z), shape (B, Z).
        targets: reward + discount times the next quantiles, shape (B, Z'); no gradient flows to them.
        kappa: where the loss becomes linear; 0: it is linear everywhere.
    """
    errors = targets.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)
    num = quantiles.shape[-1]
    levels = (torch.arange(num, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num
    sizes = errors.abs() if kappa == 0 else huber(errors, kappa) / kappa
    tilts = (levels.unsqueeze(-1) - (errors.detach() < 0).to(quantiles.dtype)).abs()
    return (tilts * sizes).mean(-1).sum(-1)


__all__ = ["categorical_losses", "categorical_projection", "quantile_losses"]
