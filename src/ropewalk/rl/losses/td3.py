"""Losses of TD3: Fujimoto, van Hoof, Meger: Addressing Function Approximation Error in Actor-Critic Methods, 2018.

https://arxiv.org/abs/1802.09477, algorithm 1. C is the number of critics, B that of transitions.
"""

from __future__ import annotations

from torch import Tensor

from ropewalk.rl.losses.td import weighted_mean


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """Return the target policy's action with clipped noise, within the canonical bounds (equation 14).

    Args:
        action: action of the target policy, canonical, shape (B, A).
        noise: Gaussian, shape (B, A).
        clip: the noise is clipped to -clip to clip.
    """
    return (action + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def clipped_double_target(reward: Tensor, discount: Tensor, next_values: Tensor) -> Tensor:
    """Return y = r + D min_c Q_c(x', a') (equation 10).

    Args:
        reward: shape (B,); an n-step sum where items have several steps.
        discount: D, the complete factor of the bootstrap value, 0 where the episode terminated; shape (B,).
        next_values: values of the target critics at the smoothed action, shape (C, B).
    """
    return reward + discount * next_values.amin(dim=0)


def critic_loss(values: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean squared error of each critic, summed over critics.

    Args:
        values: Q_c(x, a), shape (C, B).
        target: no gradient flows into it; shape (B,).
        weights: see `weighted_mean`.
    """
    return weighted_mean((values - target.detach()).square().sum(dim=0), weights)


def policy_loss(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of -Q_1(x, pi(x)): the deterministic policy gradient of the first critic.

    Args:
        values: Q_c(x, pi(x)), shape (C, B).
        weights: see `weighted_mean`.
    """
    return -weighted_mean(values[0], weights)


def cloning_policy_loss(values: Tensor, action: Tensor, recorded: Tensor, alpha: float) -> Tensor:
    """Return the mean of -lambda Q_1(x, pi(x)) plus the squared error to the recorded actions (TD3+BC).

    Fujimoto, Gu: A Minimalist Approach to Offline Reinforcement Learning, 2021 (https://arxiv.org/abs/2106.06860),
    equations 3 and 5: lambda = alpha / mean |Q_1|, through which no gradient flows.

    Args:
        values: Q_c(x, pi(x)), shape (C, B).
        action: pi(x), canonical, shape (B, A).
        recorded: the actions of the data, canonical, shape (B, A).
        alpha: weight of the values, 2.5 in the paper.
    """
    weight = alpha / values[0].detach().abs().mean().clamp(min=1e-8)
    return -weight * values[0].mean() + (action - recorded).square().mean()


__all__ = ["clipped_double_target", "cloning_policy_loss", "critic_loss", "policy_loss", "smoothed_action"]
