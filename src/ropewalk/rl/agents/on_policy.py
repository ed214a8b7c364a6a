"""`OnPolicyAgent`: what IMPALA, A2C, PPO and APPO have in common.

Items are whole blocks. They wait in a queue, from which each is taken once, in the order of insertion.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.adders.unroll import UnrollAdder
from ropewalk.rl.agents.agent import Agent, NetworkFactory, require
from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, EnvironmentSpec
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.on_policy import OnPolicyLearner, OnPolicySettings
from ropewalk.rl.learners.optimizers import OptimizerFactory
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution, for_spec
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.nature_cnn import NatureCNN
from ropewalk.rl.networks.normalisation import Normalised
from ropewalk.rl.networks.preprocessing import has_images, is_image
from ropewalk.rl.policies.stochastic import StochasticPolicy
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.seeds import derived_seed


@dataclass(frozen=True, kw_only=True)
class OnPolicyAgent(Agent):
    """Settings that all on-policy agents have. Their defaults are those of each agent.

    Attributes:
        unroll: T, steps of a block.
        envs: N, environments of a group.
        batch_size: blocks of a batch; None: one from each group.
        optimizer: makes the optimizer, such as `rl.TorchAdam(1e-3)`, or any function of the parameters.
        anneal_learning_rate: whether the learning rate falls linearly to 0 at the end of the experiment.
        discount: gamma.
        lambda_: lambda of the returns: 1 sums rewards to the end of the unroll, 0 bootstraps after each step.
        entropy_cost: weight of the entropy, which is subtracted from the loss.
        baseline_cost: weight of the loss of the values.
        max_grad_norm: gradients with a larger norm are scaled down to it; None: they are not.
        reward_scale: factor of rewards.
        reward_clip: rewards, after scaling, are clipped to -reward_clip and reward_clip; None: they are not.
        normalise_observations: whether observations are brought to mean 0 and variance 1, and clipped to +-10.
        normalise_rewards: whether rewards are divided by the running deviation of the discounted return, and clipped to
            +-10, before they are scaled.
        separate_networks: whether policy and values have networks of their own, as the error of values in the hundreds
            would dominate a network that they share. None: if actions are continuous or observations are no images
            (IMPALA: if actions are continuous), and the network has no memory.
        not_finite: whether a loss or a gradient that is NaN or infinite raises `NotFinite`, or its step is skipped and
            counted; the tenth in a row raises in either case.
    """

    shares_torso: ClassVar[bool] = False
    """Whether discrete policies share their network with the values, whatever the observations are."""

    unroll: int
    envs: int
    batch_size: int | None
    optimizer: OptimizerFactory
    anneal_learning_rate: bool
    discount: float
    lambda_: float
    entropy_cost: float
    baseline_cost: float
    max_grad_norm: float | None
    reward_scale: float
    reward_clip: float | None
    normalise_observations: bool
    normalise_rewards: bool
    separate_networks: bool | None
    not_finite: NotFiniteRule

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        require(self, "unroll", self.unroll >= 1, "at least 1")
        require(self, "envs", self.envs >= 1, "at least 1")
        require(self, "batch_size", self.batch_size is None or self.batch_size >= 1, "at least 1, or None")
        require(self, "discount", 0 <= self.discount <= 1, "from 0 to 1")
        require(self, "lambda_", 0 <= self.lambda_ <= 1, "from 0 to 1")
        require(self, "max_grad_norm", self.max_grad_norm is None or self.max_grad_norm > 0, "above 0, or None")
        require(self, "reward_scale", 0 < self.reward_scale < math.inf, "above 0 and finite")
        require(self, "reward_clip", self.reward_clip is None or self.reward_clip > 0, "above 0, or None")
        require(self, "not_finite", self.not_finite in ("raise", "skip"), "'raise' or 'skip'")

    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> StochasticPolicy:
        """See `Agent`."""
        del group, groups
        return StochasticPolicy(self._model(spec, network, seed=0), _distribution(spec))

    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> OnPolicyLearner:
        """See `Agent`."""
        model = self._model(spec, network, seed=derived_seed(seed, "network")).to(torch.device(device))
        return self._learner(model, _distribution(spec), seed)

    @abstractmethod
    def _learner(self, model: ActorCritic, distribution: ActionDistribution, seed: int) -> OnPolicyLearner:
        """Make the learner of a model."""

    def _model(self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int) -> ActorCritic:
        network = network or _default_network(spec)
        with seeded(seed):
            return ActorCritic(
                spec,
                Normalised(network) if self.normalise_observations else network,
                _distribution(spec),
                separate=self._separate(spec),
            )

    def _separate(self, spec: EnvironmentSpec) -> bool | None:
        """Whether the networks are separate; None: unless they have memory."""
        if self.separate_networks is None and not isinstance(spec.action, ContinuousAction):
            return False if self.shares_torso or has_images(spec.observation) else None
        return self.separate_networks

    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        """See `Agent`. One queue, in which each block waits until it is taken, once, in the order of insertion.

        In lock-step it has room for the blocks of a round beside an incomplete batch of the rounds before. Otherwise
        actors wait while it is full, which bounds the age of what is learned from.
        """
        del spec, seed
        size = self.items_of_batch(groups) + groups - 1
        return [ReplayTable.queue(self.table, size)]

    def make_adder(self, spec: EnvironmentSpec) -> Adder:
        """See `Agent`."""
        del spec
        return UnrollAdder(self.table, bundles=True)

    def learner_settings(self, max_policy_lag: int | None = None) -> OnPolicySettings:
        """Return the settings that all learners of blocks have."""
        return OnPolicySettings(
            optimizer=self.optimizer,
            anneal=self.anneal_learning_rate,
            max_grad_norm=self.max_grad_norm,
            not_finite=self.not_finite,
            discount=self.discount,
            reward_scale=self.reward_scale,
            reward_clip=self.reward_clip,
            normalise_rewards=self.normalise_rewards,
            max_policy_lag=max_policy_lag,
        )


def _distribution(spec: EnvironmentSpec) -> ActionDistribution:
    return for_spec(spec.action)


def _default_network(spec: EnvironmentSpec) -> NetworkFactory:
    """Convolutions for images, otherwise a perceptron."""
    return NatureCNN() if isinstance(spec.observation, ArraySpec) and is_image(spec.observation) else MLP((64, 64))


__all__ = ["OnPolicyAgent"]
