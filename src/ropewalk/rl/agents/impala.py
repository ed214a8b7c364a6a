"""IMPALA: actors run ahead of the learner, which corrects for that by V-trace.

Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures, 2018
(https://arxiv.org/abs/1802.01561); lambda as in SEED RL, 2020. Losses are means over the steps of a batch, where the
paper has sums: so the learning rate does not depend on the size of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.agents.on_policy import OnPolicyAgent
from ropewalk.rl.agents.vtrace_bounds import VTraceBounds
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.on_policy import OnPolicyLearner
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.losses.actor_critic import actor_critic_loss
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.replay.batch import SampleInfo


@dataclass(frozen=True, kw_only=True)
class IMPALA(VTraceBounds, OnPolicyAgent):
    """Settings of IMPALA; see `OnPolicyAgent` and `VTraceBounds`.

    Espeholt et al., IMPALA: Scalable Distributed Deep-RL, 2018 (https://arxiv.org/abs/1802.01561).
    """

    shares_torso = True

    unroll: int = 20
    envs: int = 8
    batch_size: int | None = 4
    optimizer: OptimizerFactory = TorchAdam(1e-3)
    anneal_learning_rate: bool = False
    discount: float = 0.99
    lambda_: float = 1.0
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    max_grad_norm: float | None = 40.0
    reward_scale: float = 1.0
    reward_clip: float | None = None
    normalise_observations: bool = False
    normalise_rewards: bool = False
    separate_networks: bool | None = None
    not_finite: NotFiniteRule = "raise"

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        super().__post_init__()
        self.check_bounds()

    def _learner(self, model: ActorCritic, distribution: ActionDistribution, seed: int) -> IMPALALearner:
        del seed
        return IMPALALearner(model, distribution, self)


class IMPALALearner(OnPolicyLearner):
    """Learns as `IMPALA` says."""

    def __init__(self, model: ActorCritic, distribution: ActionDistribution, agent: IMPALA) -> None:
        super().__init__(model, distribution, agent.learner_settings(agent.max_policy_lag))
        self._agent = agent

    def learn(self, unrolls: Unrolls, info: SampleInfo) -> dict[str, float]:
        """See `OnPolicyLearner`."""
        agent, mask = self._agent, unrolls.mask
        params, values, _ = self.model.unroll(unrolls.observation, unrolls.first, unrolls.state)
        log_prob = self.distribution.log_prob(params[:-1], unrolls.action)
        returns = agent.corrected(
            unrolls,
            log_prob=log_prob.detach(),
            values=values.detach(),
            discount=agent.discount,
            lambda_=agent.lambda_,
        )
        loss = actor_critic_loss(
            log_prob=log_prob,
            entropy=self.distribution.entropy(params[:-1]),
            values=values[:-1],
            advantages=returns.advantages,
            targets=returns.targets,
            mask=mask,
            value_cost=agent.baseline_cost,
            entropy_cost=agent.entropy_cost,
        )
        metrics = self.actor_critic_step(loss, values[:-1], returns.targets, mask, info)
        metrics["ratio"] = float(returns.ratios[mask].mean())
        metrics["ratio_max"] = float(returns.ratios.max())
        return metrics


__all__ = ["IMPALA", "IMPALALearner"]
