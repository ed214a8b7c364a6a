"""Proximal policy optimization, with the details that decide how well it works.

Schulman et al.: Proximal Policy Optimization Algorithms, 2017 (https://arxiv.org/abs/1707.06347), equation 7. Details
are numbered as in Huang et al.: The 37 Implementation Details of Proximal Policy Optimization, 2022
(https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/):

core        1 vectorised environments, 2 orthogonal weights, 3 Adam's eps 1e-5, 4 annealing, 5 GAE, 6 shuffled
            minibatches without replacement, 7 advantages normalised in each minibatch, 8 clipped ratio, 9 clipped
            values, 10 entropy, 11 bounded gradient, 12 metrics, 13 shared or separate networks
continuous  1 Gaussian, 2 deviations that do not depend on the state, 3 independent components, 4 separate networks,
            5 actions are clipped for the environment alone, 6, 7 normalised and clipped observations, 8, 9 scaled and
            clipped rewards
LSTM        1 orthogonal weights, 2 zero state, 3 resets, 4 minibatches of whole environments, 5 the state at the
            start of the unroll is stored
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.rl.agents.agent import require
from ropewalk.rl.agents.on_policy import OnPolicyAgent
from ropewalk.rl.learners.gradient_step import GradientStep, NotFiniteRule
from ropewalk.rl.learners.metrics import MetricMeans
from ropewalk.rl.learners.minibatches import Minibatch, minibatches
from ropewalk.rl.learners.on_policy import OnPolicyLearner
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.losses.gae import gae
from ropewalk.rl.losses.ppo import (
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    normalised_advantages,
)
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.replay.batch import SampleInfo
from ropewalk.rl.schedules import LinearSchedule
from ropewalk.rl.seeds import generator


@dataclass(frozen=True, kw_only=True)
class PPO(OnPolicyAgent):
    """Settings of PPO. It is synchronous: each batch has one block from each group, made with the newest weights.

    Schulman et al., Proximal Policy Optimization Algorithms, 2017 (https://arxiv.org/abs/1707.06347), equation 7,
    with the details of Huang et al., The 37 Implementation Details of PPO, 2022.

    Example:
        >>> from ropewalk import rl
        >>> agent = rl.PPO(unroll=128, envs=8, minibatches=4, epochs=10, optimizer=rl.TorchAdam(3e-4, eps=1e-5))
        >>> agent.unroll * agent.envs // agent.minibatches  # steps of one gradient, with one group
        256

    Attributes:
        epochs: how many times each batch is gone through.
        minibatches: gradient steps of an epoch. Networks with memory learn from whole environments, so they take at
            most one step for each environment.
        clip: the ratio of probabilities counts up to this distance from 1; a `LinearSchedule` changes it with the steps
            of the experiment.
        value_clip: values move at most this far from those before the update; None: as far as they do.
        normalise_advantages: whether advantages have mean 0 and variance 1 in each minibatch.
        recompute_advantages: whether advantages are computed again, with the new values, before each epoch.
        target_kl: no further epoch begins once the policy has moved this far, in nats; None: all epochs are done.
    """

    synchronous = True

    unroll: int = 128
    envs: int = 8
    batch_size: int | None = None
    optimizer: OptimizerFactory = TorchAdam(2.5e-4, eps=1e-5)
    anneal_learning_rate: bool = True
    discount: float = 0.99
    lambda_: float = 0.95
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    max_grad_norm: float | None = 0.5
    reward_scale: float = 1.0
    reward_clip: float | None = None
    normalise_observations: bool = False
    normalise_rewards: bool = False
    separate_networks: bool | None = None
    not_finite: NotFiniteRule = "raise"
    epochs: int = 4
    minibatches: int = 4
    clip: float | LinearSchedule = 0.2
    value_clip: float | None = None
    normalise_advantages: bool = True
    recompute_advantages: bool = False
    target_kl: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        super().__post_init__()
        require(self, "epochs", self.epochs >= 1, "at least 1")
        require(self, "minibatches", self.minibatches >= 1, "at least 1")
        clips = (self.clip.start,) if isinstance(self.clip, LinearSchedule) else (self.clip,)
        require(self, "clip", min(clips) > 0, "above 0")
        require(self, "value_clip", self.value_clip is None or self.value_clip > 0, "above 0, or None")
        require(self, "target_kl", self.target_kl is None or self.target_kl > 0, "above 0, or None")

    def _learner(self, model: ActorCritic, distribution: ActionDistribution, seed: int) -> PPOLearner:
        return PPOLearner(model, distribution, self, seed)


@dataclass(frozen=True, slots=True)
class Targets:
    """What a batch is learned from, computed before its gradient steps; shape (T, M) each, without gradient.

    Attributes:
        values: values of the observations.
        advantages: advantages of the actions.
        returns: what values are to become.
    """

    values: Tensor
    advantages: Tensor
    returns: Tensor


class PPOLearner(OnPolicyLearner):
    """Learns as `PPO` says."""

    def __init__(
        self,
        model: ActorCritic,
        distribution: ActionDistribution,
        agent: PPO,
        seed: int,
        *,
        max_policy_lag: int | None = None,
    ) -> None:
        super().__init__(model, distribution, agent.learner_settings(max_policy_lag))
        self._agent, self._seed = agent, seed

    def learn(self, unrolls: Unrolls, info: SampleInfo) -> dict[str, float]:
        """See `OnPolicyLearner`."""
        agent, metrics = self._agent, MetricMeans()
        rng = generator(self._seed, "ppo", self.num_updates)
        first = targets = self.targets(unrolls)
        epoch = 0
        for epoch in range(agent.epochs):
            if epoch and agent.recompute_advantages:
                targets = self.targets(unrolls)
            kl = 0.0
            for minibatch in minibatches(unrolls, agent.minibatches, rng):
                loss, figures = self._loss(minibatch, targets)
                norm = self.gradient_step.take(loss, info)
                metrics.add({**figures, "gradient_norm": norm})
                kl = figures["approx_kl"]
            if agent.target_kl is not None and float(kl) > agent.target_kl:
                break
        explained = explained_variance(first.values, first.returns, unrolls.mask)
        return {**metrics.means(), "explained_variance": float(explained), "num_epochs": epoch + 1.0}

    def gradient_steps(self) -> Sequence[GradientStep]:
        """See `Learner`."""
        agent = self._agent
        if agent.target_kl is not None:
            raise ValueError(
                f"{type(agent).__name__} ends an update at target_kl={agent.target_kl}, which several learners would "
                "not reach at the same step; leave out target_kl, or use learners=1"
            )
        has_memory = bool(self.model.initial_state(1))
        least = self._least_parts(has_memory=has_memory)
        if agent.minibatches > least:
            parts = "environments of a batch, as the network has memory," if has_memory else "steps of a batch,"
            raise ValueError(
                f"{type(agent).__name__} makes minibatches={agent.minibatches} of the {parts} and a batch may have "
                f"only {least} that count: several learners would take different numbers of steps. Say "
                f"minibatches={least}, or more envs or a longer unroll, or use learners=1"
            )
        return super().gradient_steps()

    def _least_parts(self, *, has_memory: bool) -> int:
        """Return the least number of environments or steps of a batch that count, so that minibatches are made of them.

        A batch may be a single block. Steps that only begin an episode do not count, and at most every other one does
        so: an environment has one that counts in two steps.
        """
        agent = self._agent
        if has_memory:
            return agent.envs if agent.unroll > 1 else 1
        return max(1, agent.envs * (agent.unroll // 2))

    def targets(self, unrolls: Unrolls) -> Targets:
        """Return advantages and returns by generalised advantage estimation."""
        with torch.no_grad():
            _, values, _ = self.model.unroll(unrolls.observation, unrolls.first, unrolls.state)
        estimate = gae(
            reward=unrolls.reward,
            terminated=unrolls.terminated,
            mask=unrolls.mask,
            values=values,
            discount=self._agent.discount,
            lambda_=self._agent.lambda_,
        )
        return Targets(values[:-1], estimate.advantages, estimate.returns)

    def _loss(self, minibatch: Minibatch, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        agent = self._agent
        params, values = minibatch.evaluate(self.model)
        advantages = minibatch.of(targets.advantages)
        policy = clipped_policy_loss(
            log_prob=self.distribution.log_prob(params, minibatch.of(minibatch.unrolls.action)),
            behaviour_log_prob=minibatch.of(minibatch.unrolls.log_prob),
            advantages=normalised_advantages(advantages, None) if agent.normalise_advantages else advantages,
            mask=None,
            clip=agent.clip.at(self.progress) if isinstance(agent.clip, LinearSchedule) else agent.clip,
        )
        value = clipped_value_loss(
            values=values,
            old_values=minibatch.of(targets.values),
            returns=minibatch.of(targets.returns),
            mask=None,
            clip=agent.value_clip,
        )
        entropy = self.distribution.entropy(params).mean()
        loss = policy.loss + agent.baseline_cost * value - agent.entropy_cost * entropy
        return loss, {
            "loss": loss.detach(),
            "policy_loss": policy.loss.detach(),
            "value_loss": value.detach(),
            "entropy": entropy.detach(),
            "approx_kl": policy.approx_kl,
            "clip_fraction": policy.clip_fraction,
        }


__all__ = ["PPO", "PPOLearner", "Targets"]
