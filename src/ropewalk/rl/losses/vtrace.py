"""V-trace: values of a policy from steps of an older one.

Espeholt et al.: IMPALA, 2018 (https://arxiv.org/abs/1802.01561), equation 1 and section 4.2; lambda as in remark 2.

    rho_t = min(rho_bar, pi / mu)    c_t = lambda min(c_bar, pi / mu)    gamma_t = gamma (1 - terminated_t)
    delta_t = rho_t (r_t + gamma_t V(x_{t+1}) - V(x_t))
    v_t - V(x_t) = delta_t + gamma_t c_t (v_{t+1} - V(x_{t+1})),  v_T = V(x_T)
    advantage_t = min(pg_rho_bar, pi / mu) (r_t + gamma_t v_{t+1} - V(x_t))

On policy with lambda = 1, v_t is the return of all steps that are left; with rho_bar = 0 it is V(x_t).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.rl.losses.recursion import step_discounts, summed_backwards


@dataclass(frozen=True, slots=True)
class VTraceReturns:
    """What V-trace computes, without gradient, shape (T, B) each.

    Attributes:
        targets: v_t, what the values of observations are to become; V(x_t) at masked steps.
        advantages: advantages of the actions; 0 at masked steps.
        ratios: pi / mu, not clipped; 1 at masked steps.
    """

    targets: Tensor
    advantages: Tensor
    ratios: Tensor


@torch.no_grad()
def vtrace(
    *,
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    reward: Tensor,
    terminated: Tensor,
    mask: Tensor,
    values: Tensor,
    discount: float,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> VTraceReturns:
    """Return V-trace's targets and advantages.

    Args:
        log_prob: log-probabilities of the actions under the policy that learns, shape (T, B).
        behaviour_log_prob: log-probabilities of the actions under the policy that chose them, shape (T, B).
        reward: shape (T, B).
        terminated: bool, shape (T, B).
        mask: bool, shape (T, B).
        values: V of the observations, shape (T+1, B).
        discount: gamma.
        lambda_: 1 trusts rewards as far as they go, smaller numbers trust values.
        rho_bar: bound of the ratios in the temporal differences: decides which policy the values are of.
        c_bar: bound of the ratios in the trace, at most rho_bar: decides how fast they converge.
        pg_rho_bar: bound of the ratios in the advantages.

    Raises:
        ValueError: rho_bar is less than c_bar, and not 0.
    """
    if 0 < rho_bar < c_bar:  # with 0 no trace is followed at all
        raise ValueError(f"rho_bar ({rho_bar}) must be at least c_bar ({c_bar}), or V-trace need not converge")
    ratios = torch.where(mask, log_prob - behaviour_log_prob, 0.0).exp()
    discounts = step_discounts(terminated, discount, values)
    reward = torch.where(mask, reward, 0.0)
    now, later = values[:-1], values[1:]
    differences = torch.where(mask, ratios.clamp(max=rho_bar) * (reward + discounts * later - now), 0.0)
    factors = torch.where(mask, discounts * lambda_ * ratios.clamp(max=c_bar), 0.0)
    targets = now + summed_backwards(differences, factors)
    next_targets = torch.cat([targets[1:], values[-1:]])
    advantages = ratios.clamp(max=pg_rho_bar) * (reward + discounts * next_targets - now)
    return VTraceReturns(targets, torch.where(mask, advantages, 0.0), ratios)


__all__ = ["VTraceReturns", "vtrace"]
