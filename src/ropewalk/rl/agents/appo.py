"""APPO: the clipped loss of PPO on the blocks of actors that run ahead, with the advantages of V-trace.

As in RLlib (Liang et al., 2018, https://arxiv.org/abs/1712.09381) and Sample Factory (Petrenko et al., 2020,
https://arxiv.org/abs/2006.11751). Ratios are to the log-probabilities that came with the actions, not to those that an
older network computes again; blocks that are too old are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ropewalk.rl.agents.ppo import PPO, PPOLearner, Targets
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.losses.vtrace import vtrace
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution


@dataclass(frozen=True, kw_only=True)
class APPO(PPO):
    """Settings of APPO: those of `PPO`, and some of `IMPALA`.

    Attributes:
        rho_bar: bound of the ratios of probabilities that weigh temporal differences; at least c_bar.
        c_bar: bound of the ratios by which later differences count for earlier values.
        max_policy_lag: blocks whose actions were chosen by weights more than this number of versions old are dropped
            and counted; None: none are.
    """

    synchronous = False

    unroll: int = 32
    batch_size: int | None = 4
    optimizer: OptimizerFactory = TorchAdam(5e-4, eps=1e-5)
    anneal_learning_rate: bool = False
    epochs: int = 1
    minibatches: int = 4
    rho_bar: float = 1.0
    c_bar: float = 1.0
    max_policy_lag: int | None = 20

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        super().__post_init__()
        self._require("c_bar", self.c_bar > 0, "above 0")
        self._require("rho_bar", self.rho_bar >= self.c_bar, f"at least c_bar={self.c_bar}, or values may not converge")
        self._require("max_policy_lag", self.max_policy_lag is None or self.max_policy_lag >= 0, "at least 0, or None")

    def _learner(self, model: ActorCritic, distribution: ActionDistribution, seed: int) -> APPOLearner:
        return APPOLearner(model, distribution, self, seed)


class APPOLearner(PPOLearner):
    """Learns as `APPO` says."""

    def __init__(self, model: ActorCritic, distribution: ActionDistribution, agent: APPO, seed: int) -> None:
        super().__init__(model, distribution, agent, seed, max_policy_lag=agent.max_policy_lag)
        self._bounds = agent.rho_bar, agent.c_bar

    def targets(self, unrolls: Unrolls) -> Targets:
        """Return the advantages and the targets of V-trace."""
        with torch.no_grad():
            params, values, _ = self.model.unroll(unrolls.observation, unrolls.first, unrolls.state)
            log_prob = self.distribution.log_prob(params[:-1], unrolls.action)
        rho_bar, c_bar = self._bounds
        returns = vtrace(
            log_prob=log_prob,
            behaviour_log_prob=unrolls.log_prob,
            reward=unrolls.reward,
            terminated=unrolls.terminated,
            mask=unrolls.mask,
            values=values,
            discount=self._agent.discount,
            lambda_=self._agent.lambda_,
            rho_bar=rho_bar,
            c_bar=c_bar,
        )
        return Targets(values[:-1], returns.advantages, returns.targets)


__all__ = ["APPO", "APPOLearner"]
