"""The losses of PPO, and the numbers that tell whether it is healthy.

Schulman et al.: Proximal Policy Optimization Algorithms, 2017 (https://arxiv.org/abs/1707.06347), equation 7; details
as in Huang et al.: The 37 Implementation Details of Proximal Policy Optimization, 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.rl.losses.recursion import masked, masked_mean

_EPSILON = 1e-8
"""Is added to a deviation that may be 0."""


@dataclass(frozen=True, slots=True)
class ClippedPolicyLoss:
    """A loss and what it tells, scalars.

    Attributes:
        loss: with gradient.
        approx_kl: mean of (ratio - 1) - log ratio, an estimate of the divergence from the policy that acted.
        clip_fraction: share of the actions whose ratio lies outside the clip range.
    """

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def clipped_policy_loss(
    *, log_prob: Tensor, behaviour_log_prob: Tensor, advantages: Tensor, mask: Tensor | None, clip: float = 0.2
) -> ClippedPolicyLoss:
    """Return the mean of -min(ratio A, clip(ratio, 1 - clip, 1 + clip) A).

    Args:
        log_prob: log-probabilities of the actions under the policy that learns, any shape S.
        behaviour_log_prob: log-probabilities of the actions under the policy that chose them, shape S.
        advantages: shape S; no gradient flows to them.
        mask: bool, shape S; None counts all.
        clip: range of the ratio around 1.
    """
    log_ratio = masked(log_prob - behaviour_log_prob, mask)
    ratio = log_ratio.exp()
    advantages = masked(advantages.detach(), mask)
    gains = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    with torch.no_grad():
        approx_kl = masked_mean(ratio - 1 - log_ratio, mask)
        clip_fraction = masked_mean(((ratio - 1).abs() > clip).to(ratio.dtype), mask)
    return ClippedPolicyLoss(-masked_mean(gains, mask), approx_kl, clip_fraction)


def clipped_value_loss(
    *, values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor | None, clip: float | None = None
) -> Tensor:
    """Return half the mean squared error, or of the larger error of the value and of the value near the old one.

    Args:
        values: any shape S.
        old_values: values before the update, shape S.
        returns: shape S.
        mask: bool, shape S; None counts all.
        clip: range of the values around the old ones; None: no clipping, which does as well.
    """
    old_values, returns = old_values.detach(), returns.detach()
    errors = masked(values - returns, mask).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, masked(near - returns, mask).square())
    return 0.5 * masked_mean(errors, mask)


@torch.no_grad()
def normalised_advantages(advantages: Tensor, mask: Tensor | None) -> Tensor:
    """Return advantages less their mean, divided by their deviation; 0 at masked steps. A mask of None counts all.

    The deviation is that of a sample (with n - 1), as torch has it. A single step is left as it is.
    """
    if mask is None:
        if advantages.numel() <= 1:
            return advantages
        std, mean = torch.std_mean(advantages)
        return (advantages - mean) / (std + _EPSILON)
    num = mask.sum()
    if num <= 1:
        return torch.where(mask, advantages, 0.0)
    apart = torch.where(mask, advantages - masked_mean(advantages, mask), 0.0)
    return apart / ((apart.square().sum() / (num - 1)).sqrt() + _EPSILON)


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns): 1 is perfect, 0 a constant; NaN where returns do not vary."""
    values, returns = values[mask], returns[mask]
    variance = returns.var(correction=0)
    explained = 1 - (returns - values).var(correction=0) / variance
    return torch.where(variance > 0, explained, torch.nan)


__all__ = [
    "ClippedPolicyLoss",
    "clipped_policy_loss",
    "clipped_value_loss",
    "explained_variance",
    "normalised_advantages",
]
