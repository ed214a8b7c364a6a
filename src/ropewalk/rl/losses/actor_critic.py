"""The loss of A2C and IMPALA: policy gradient, squared error of values, and entropy.

Espeholt et al.: IMPALA, 2018 (https://arxiv.org/abs/1802.01561), section 4.2. Sums over steps are means here, over
those that count, so that the learning rate does not depend on the size of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.rl.losses.recursion import masked_mean


@dataclass(frozen=True, slots=True)
class ActorCriticLoss:
    """A loss and its parts, scalars.

    Attributes:
        loss: policy + value_cost * value - entropy_cost * entropy, with gradient.
        policy: -mean of log-probability times advantage.
        value: half the mean squared error of the values.
        entropy: mean entropy in nats.
    """

    loss: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def actor_critic_loss(
    *,
    log_prob: Tensor,
    entropy: Tensor,
    values: Tensor,
    advantages: Tensor,
    targets: Tensor,
    mask: Tensor,
    value_cost: float = 0.5,
    entropy_cost: float = 0.01,
) -> ActorCriticLoss:
    """Return the loss; no gradient flows to advantages and targets.

    Args:
        log_prob: log-probabilities of the actions, shape (T, B).
        entropy: entropy of the policy, shape (T, B).
        values: V of the steps' observations, shape (T, B).
        advantages: shape (T, B).
        targets: targets of the values, shape (T, B).
        mask: bool, shape (T, B).
        value_cost: factor of the values' loss.
        entropy_cost: factor of the entropy.
    """
    policy = -masked_mean(torch.where(mask, log_prob, 0.0) * advantages.detach(), mask)
    value = 0.5 * masked_mean(torch.where(mask, targets.detach() - values, 0.0).square(), mask)
    mean_entropy = masked_mean(entropy, mask)
    return ActorCriticLoss(policy + value_cost * value - entropy_cost * mean_entropy, policy, value, mean_entropy)


__all__ = ["ActorCriticLoss", "actor_critic_loss"]
