"""Temporal differences of action values: double Q-learning on transitions and on sequences.

van Hasselt, Guez, Silver: Deep Reinforcement Learning with Double Q-learning, 2016 (https://arxiv.org/abs/1509.06461);
sequences with rescaled values as in R2D2 (Kapturowski et al., 2019), section 2.3 and equation 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.rl.losses.n_step import n_step_returns
from ropewalk.rl.losses.value_rescaling import rescaled, unrescaled


@dataclass(frozen=True, slots=True)
class TDLoss:
    """A loss and the errors that it is made of.

    Attributes:
        loss: scalar, with gradient.
        td_errors: target - value, without gradient: shape (B,) of transitions, (T, B) of sequences, 0 at masked steps.
    """

    loss: Tensor
    td_errors: Tensor


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of losses times weights, both of shape (B,); None: all weigh 1."""
    return (losses if weights is None else losses * weights).mean()


@torch.no_grad()
def q_targets(reward: Tensor, discount: Tensor, next_q: Tensor, next_online_q: Tensor | None = None) -> Tensor:
    """Return reward + discount Q'(x', a'), shape (B,).

    Args:
        reward: reward of the n steps of each transition, shape (B,).
        discount: the whole factor of the bootstrap value, shape (B,), 0 after a termination.
        next_q: action values of the target network, shape (B, A).
        next_online_q: action values of the network that learns, shape (B, A), which chooses a' (double Q-learning);
            None: the target network chooses.
    """
    chooser = next_q if next_online_q is None else next_online_q
    return reward + discount * action_values(next_q, chooser.argmax(-1))


def action_values(q: Tensor, action: Tensor) -> Tensor:
    """Return Q of the actions, shape (...), of all Q, shape (..., A), and actions, shape (...)."""
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def huber(errors: Tensor, delta: float | None) -> Tensor:
    """Return 0.5 e^2, or delta (|e| - delta / 2) where |e| is larger than delta; None: 0.5 e^2 everywhere."""
    if delta is None:
        return 0.5 * errors.square()
    size = errors.abs()
    return torch.where(size <= delta, 0.5 * errors.square(), delta * (size - 0.5 * delta))


def td_loss(values: Tensor, targets: Tensor, weights: Tensor | None = None, *, delta: float | None = 1.0) -> TDLoss:
    """Return the mean loss of transitions.

    Args:
        values: Q of the actions taken, shape (B,).
        targets: shape (B,); no gradient flows to them.
        weights: weights of the items (`importance_weights`), shape (B,).
        delta: where Huber's loss becomes linear; None: it never does.
    """
    errors = targets.detach() - values
    losses = huber(errors, delta)
    return TDLoss(weighted_mean(losses, weights), errors.detach())


def sequence_td_loss(
    *,
    q: Tensor,
    target_q: Tensor,
    action: Tensor,
    reward: Tensor,
    terminated: Tensor,
    mask: Tensor,
    discount: float,
    n: int,
    weights: Tensor | None = None,
    eps: float | None = 1e-3,
) -> TDLoss:
    """Return half the sum of squared errors of each sequence, times its weight, averaged over sequences.

    A target is h(r_t + ... + gamma^n h^-1(Q'(x_{t+n}, argmax Q(x_{t+n})))). The last targets of a sequence have fewer
    steps, and its last step has none, since what follows it is not known.

    Args:
        q: action values of the network that learns, after burn-in, shape (L, B, A).
        target_q: action values of the target network, shape (L, B, A).
        action: shape (L, B).
        reward: shape (L, B).
        terminated: bool, shape (L, B).
        mask: bool, shape (L, B).
        discount: gamma.
        n: steps of reward before the value is used.
        weights: weights of the sequences (`importance_weights`), shape (B,).
        eps: epsilon of h; None: values are not rescaled.
    """
    with torch.no_grad():
        bootstrap = action_values(target_q, q.argmax(-1))
        returns = n_step_returns(
            reward=reward[:-1],
            terminated=terminated[:-1],
            mask=mask[:-1],
            values=bootstrap if eps is None else unrescaled(bootstrap, eps),
            discount=discount,
            n=n,
        )
        targets = returns if eps is None else rescaled(returns, eps)
    errors = torch.where(mask[:-1], targets - action_values(q[:-1], action[:-1]), 0.0)
    losses = 0.5 * errors.square().sum(0)
    return TDLoss(weighted_mean(losses, weights), errors.detach())


__all__ = ["TDLoss", "action_values", "huber", "q_targets", "sequence_td_loss", "td_loss", "weighted_mean"]
