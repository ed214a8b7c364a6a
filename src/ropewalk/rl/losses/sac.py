"""The losses of soft actor-critic.

Haarnoja et al.: Soft Actor-Critic Algorithms and Applications, 2018 (https://arxiv.org/abs/1812.05905), equations 5
to 7, 9 and 18, with the smaller one of two action values (section 6).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.rl.losses.td import TDLoss, weighted_mean


@torch.no_grad()
def soft_targets(
    *,
    reward: Tensor,
    discount: Tensor,
    next_q1: Tensor,
    next_q2: Tensor,
    next_log_prob: Tensor,
    temperature: Tensor | float,
) -> Tensor:
    """Return reward + discount (min(Q1', Q2') - temperature log pi(a'|x')), shape (B,).

    Args:
        reward: shape (B,).
        discount: the whole factor of the bootstrap value, shape (B,), 0 after a termination.
        next_q1: values of the first target network, for actions that the policy draws now, shape (B,).
        next_q2: values of the second one, for the same actions, shape (B,).
        next_log_prob: log-probabilities of these actions, shape (B,).
        temperature: factor of the entropy; 0 is TD3's target.
    """
    return reward + discount * (torch.minimum(next_q1, next_q2) - temperature * next_log_prob)


def twin_q_loss(q1: Tensor, q2: Tensor, targets: Tensor, weights: Tensor | None = None) -> TDLoss:
    """Return the sum of half the mean squared errors of both networks; its errors are the mean of theirs.

    Args:
        q1: values of the first network, for the actions taken, shape (B,).
        q2: values of the second network, shape (B,).
        targets: shape (B,); no gradient flows to them.
        weights: see `weighted_mean`.
    """
    first, second = targets.detach() - q1, targets.detach() - q2
    losses = 0.5 * (first.square() + second.square())
    return TDLoss(weighted_mean(losses, weights), (0.5 * (first + second)).detach())


def soft_policy_loss(
    q1: Tensor, q2: Tensor, log_prob: Tensor, temperature: Tensor | float, weights: Tensor | None = None
) -> Tensor:
    """Return the mean of temperature log pi(a|x) - min(Q1, Q2), for actions drawn with gradient (`rsample`).

    No gradient flows to the temperature. Weights: see `weighted_mean`.
    """
    if isinstance(temperature, Tensor):
        temperature = temperature.detach()
    return weighted_mean(temperature * log_prob - torch.minimum(q1, q2), weights)


def temperature_loss(
    log_temperature: Tensor, log_prob: Tensor, target_entropy: float, weights: Tensor | None = None
) -> Tensor:
    """Return the loss whose gradient raises the temperature where the entropy is below its target.

    Args:
        log_temperature: scalar, the logarithm, which is what is learned.
        log_prob: log-probabilities of actions drawn by the policy, shape (B,); no gradient flows to it.
        target_entropy: in nats; the usual one is -(number of components).
        weights: see `weighted_mean`.
    """
    return -weighted_mean(log_temperature.exp() * (log_prob.detach() + target_entropy), weights)


__all__ = ["soft_policy_loss", "soft_targets", "temperature_loss", "twin_q_loss"]
