"""APPO: the clipped loss of PPO on the blocks of actors that run ahead, with the advantages of V-trace.

As in RLlib (Liang et al., 2018, https://arxiv.org/abs/1712.09381) and Sample Factory (Petrenko et al., 2020,
https://arxiv.org/abs/2006.11751). Ratios are to the log-probabilities that came with the actions, not to those that an
older network computes again; blocks that are too old are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ropewalk.rl.agents.ppo import PPO, PPOLearner, Targets
from ropewalk.rl.agents.vtrace_bounds import VTraceBounds
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution


@dataclass(frozen=True, kw_only=True)
class APPO(VTraceBounds, PPO):
    """Settings of APPO: those of `PPO`, and those of `VTraceBounds`.

    As in RLlib (Liang et al., 2018, https://arxiv.org/abs/1712.09381) and Sample Factory (Petrenko et al., 2020,
    https://arxiv.org/abs/2006.11751).
    """

    synchronous = False

    unroll: int = 32
    batch_size: int | None = 4
    optimizer: OptimizerFactory = TorchAdam(5e-4, eps=1e-5)
    anneal_learning_rate: bool = False
    epochs: int = 1
    minibatches: int = 4
    max_policy_lag: int | None = 20

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        super().__post_init__()
        self.check_bounds()

    def _learner(self, model: ActorCritic, distribution: ActionDistribution, seed: int) -> APPOLearner:
        return APPOLearner(model, distribution, self, seed)


class APPOLearner(PPOLearner):
    """Learns as `APPO` says."""

    def __init__(self, model: ActorCritic, distribution: ActionDistribution, agent: APPO, seed: int) -> None:
        super().__init__(model, distribution, agent, seed, max_policy_lag=agent.max_policy_lag)
        self._bounds: VTraceBounds = agent

    def targets(self, unrolls: Unrolls) -> Targets:
        """Return the advantages and the targets of V-trace."""
        with torch.no_grad():
            params, values, _ = self.model.unroll(unrolls.observation, unrolls.first, unrolls.state)
            log_prob = self.distribution.log_prob(params[:-1], unrolls.action)
        agent = self._agent
        returns = self._bounds.corrected(
            unrolls, log_prob=log_prob, values=values, discount=agent.discount, lambda_=agent.lambda_
        )
        return Targets(values[:-1], returns.advantages, returns.targets)


__all__ = ["APPO", "APPOLearner"]
