"""Losses of behaviour cloning: Pomerleau, ALVINN: An Autonomous Land Vehicle in a Neural Network, 1988.

The policy is trained to give, for each recorded observation, the recorded action.
"""

from __future__ import annotations

from torch import Tensor


def action_loss(action: Tensor, recorded: Tensor) -> Tensor:
    """Return the mean squared error of continuous actions.

    Args:
        action: action of the policy, canonical, shape (B, A).
        recorded: canonical, shape (B, A).
    """
    return (action - recorded).square().mean()


def likelihood_loss(log_prob: Tensor) -> Tensor:
    """Return the mean of -log pi(a|x).

    Args:
        log_prob: log-probabilities of the recorded actions, shape (B,).
    """
    return -log_prob.mean()


__all__ = ["action_loss", "likelihood_loss"]
