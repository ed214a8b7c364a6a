"""Advantage actor-critic: one gradient step on each batch, made with the newest weights.

Mnih et al.: Asynchronous Methods for Deep Reinforcement Learning, 2016 (https://arxiv.org/abs/1602.01783), algorithm
S3, in its synchronous form. It is IMPALA without lag, whose V-trace is then the return that is used here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.agents.on_policy import OnPolicyAgent
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.on_policy import OnPolicyLearner
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchRMSProp
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.losses.actor_critic import actor_critic_loss
from ropewalk.rl.losses.gae import gae
from ropewalk.rl.losses.ppo import normalised_advantages
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.replay.batch import SampleInfo


@dataclass(frozen=True, kw_only=True)
class A2C(OnPolicyAgent):
    """Settings of A2C. It is synchronous: each batch has one block from each group, made with the newest weights.

    Mnih et al., Asynchronous Methods for Deep Reinforcement Learning, 2016 (https://arxiv.org/abs/1602.01783).

    Attributes:
        normalise_advantages: whether advantages have mean 0 and variance 1 in each batch.
    """

    synchronous = True

    unroll: int = 20
    envs: int = 16
    batch_size: int | None = None
    optimizer: OptimizerFactory = TorchRMSProp(7e-4, eps=1e-5)
    anneal_learning_rate: bool = False
    discount: float = 0.99
    lambda_: float = 1.0
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    max_grad_norm: float | None = 0.5
    reward_scale: float = 1.0
    reward_clip: float | None = None
    normalise_observations: bool = False
    normalise_rewards: bool = False
    separate_networks: bool | None = None
    not_finite: NotFiniteRule = "raise"
    normalise_advantages: bool = False

    def _learner(self, model: ActorCritic, distribution: ActionDistribution, seed: int) -> A2CLearner:
        del seed
        return A2CLearner(model, distribution, self)


class A2CLearner(OnPolicyLearner):
    """Learns as `A2C` says."""

    def __init__(self, model: ActorCritic, distribution: ActionDistribution, agent: A2C) -> None:
        super().__init__(model, distribution, agent.learner_settings())
        self._agent = agent

    def learn(self, unrolls: Unrolls, info: SampleInfo) -> dict[str, float]:
        """See `OnPolicyLearner`."""
        agent, mask = self._agent, unrolls.mask
        params, values, _ = self.model.unroll(unrolls.observation, unrolls.first, unrolls.state)
        estimate = gae(
            reward=unrolls.reward,
            terminated=unrolls.terminated,
            mask=mask,
            values=values.detach(),
            discount=agent.discount,
            lambda_=agent.lambda_,
        )
        advantages = estimate.advantages
        loss = actor_critic_loss(
            log_prob=self.distribution.log_prob(params[:-1], unrolls.action),
            entropy=self.distribution.entropy(params[:-1]),
            values=values[:-1],
            advantages=normalised_advantages(advantages, mask) if agent.normalise_advantages else advantages,
            targets=estimate.returns,
            mask=mask,
            value_cost=agent.baseline_cost,
            entropy_cost=agent.entropy_cost,
        )
        return self.actor_critic_step(loss, values[:-1], estimate.returns, mask, info)


__all__ = ["A2C", "A2CLearner"]
