"""`SAC`: soft actor-critic. Haarnoja et al., 2018 (https://arxiv.org/abs/1812.05905), algorithm 1.

    y          = r + D (min_c Q_c_target(x', a') - alpha log pi(a'|x'))    a' from the policy
    critics    descend  1/2 (Q_c(x, a) - y)^2                              c = 1, 2
    policy     descends alpha log pi(a|x) - min_c Q_c(x, a)                a from the policy, reparameterised
    log alpha  descends -alpha (log pi(a|x) + target entropy)              the same a
    targets    move by tau towards the critics

Each line uses what the lines above it have changed, except that alpha is that of the beginning of the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from ropewalk.rl.agents.agent import NetworkFactory
from ropewalk.rl.agents.continuous import DEFAULT_NETWORK, ContinuousAgent, make_actor
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.actor_critics import ActorCriticsLearner
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.targets import Polyak
from ropewalk.rl.learners.transitions import Transitions
from ropewalk.rl.losses import sac as losses
from ropewalk.rl.networks.critics import Critics
from ropewalk.rl.networks.distributions import SquashedGaussian
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.squashed import SquashedPolicy
from ropewalk.rl.replay.batch import SampleInfo
from ropewalk.rl.seeds import derived_seed


@dataclass(frozen=True, kw_only=True)
class SAC(ContinuousAgent):
    """Soft actor-critic, for continuous actions with bounds.

    Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018 (https://arxiv.org/abs/1812.05905),
    algorithm 1.

    Without a network it has that of the paper, two hidden layers of 256 with ReLU. Networks have no memory.

    Attributes:
        temperature: alpha, the weight of the entropy; None: it is learned.
        initial_temperature: what a learned one begins with.
        target_entropy: what the entropy is to be, in nats, of canonical actions (-1 to 1 in each entry); None: -A for
            actions of A entries.
        min_log_std: least logarithm of the policy's standard deviations.
        max_log_std: largest.
    """

    temperature: float | None = None
    initial_temperature: float = 1.0
    target_entropy: float | None = None
    min_log_std: float = -20.0
    max_log_std: float = 2.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        for name in ("temperature", "initial_temperature"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(
                    f"{name}={value} must be positive, as its logarithm is what is learned; without a weight of the "
                    "entropy, use TD3"
                )

    def distribution(self, spec: EnvironmentSpec) -> SquashedGaussian:
        """Return the distribution of canonical actions."""
        size = spec.action_array.shape[0]
        return SquashedGaussian((-1.0,) * size, (1.0,) * size, self.min_log_std, self.max_log_std)

    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> SquashedPolicy:
        """Make a policy that draws from the distribution, or takes tanh of its mean where it acts greedily."""
        del group, groups
        scaling, distribution = ActionScaling.for_spec(spec, self.name), self.distribution(spec)
        return SquashedPolicy(make_actor(network, spec, distribution.size, self.name), scaling, distribution)

    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> SACLearner:
        """Make the learner, with weights that follow from the seed."""
        return SACLearner(self, spec, network, seed=seed, device=device)


class SACLearner(ActorCriticsLearner):
    """Trains policy, critics and temperature.

    Args:
        settings: the agent.
        spec: observations and actions of the environment, by shape and type.
        network: makes the torsos of policy and critics; None: the paper's.
        seed: seed of weights and noise.
        device: where to train.
    """

    def __init__(
        self, settings: SAC, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> None:
        self._distribution = settings.distribution(spec)
        with seeded(derived_seed(seed, "weights")):
            actor = make_actor(network, spec, self._distribution.size, settings.name)
            critics = Critics(network or DEFAULT_NETWORK, spec)
        scaling = ActionScaling.for_spec(spec, settings.name)
        super().__init__(
            actor, critics, scaling, derived_seed(seed, "noise"), device, staleness_exponent=settings.staleness_exponent
        )
        self._temperature = _Temperature(settings.temperature or settings.initial_temperature).to(self.device)
        self._target = Polyak(settings.tau)
        default = -float(spec.action_array.shape[0])
        self._target_entropy = default if settings.target_entropy is None else settings.target_entropy
        self._steps = {
            "critics": settings.gradient_step(self.critics, settings.critic_optimizer or settings.optimizer),
            "actor": settings.gradient_step(self.actor, settings.optimizer),
        }
        if settings.temperature is None:
            self._steps["temperature"] = settings.gradient_step(self._temperature, settings.optimizer)

    def modules(self) -> dict[str, nn.Module]:
        """Return all that has weights, by name."""
        return {
            "actor": self.actor,
            "critics": self.critics,
            "target_critics": self.target_critics,
            "temperature": self._temperature,
        }

    def steps(self) -> dict[str, GradientStep]:
        """Return all optimizers, by name."""
        return self._steps

    def train(self, transitions: Transitions, info: SampleInfo) -> dict[str, float]:
        """Do an update, in the order of the module's lines; see `ActorCriticsLearner`."""
        temperature = self._temperature.log.detach().exp()
        with torch.no_grad():
            action, log_prob = self._distribution.rsample(self.actor(transitions.next_observation), self.generator)
            next_values = self.target_critics(transitions.next_observation, action)
            target = losses.soft_targets(
                reward=transitions.reward,
                discount=transitions.discount,
                next_q1=next_values[0],
                next_q2=next_values[1],
                next_log_prob=log_prob,
                temperature=temperature,
            )
        values = self.critics(transitions.observation, transitions.action)
        critic_loss = losses.twin_q_loss(values[0], values[1], target, transitions.weights).loss
        self._steps["critics"].take(critic_loss, info)

        action, log_prob = self._distribution.rsample(self.actor(transitions.observation), self.generator)
        values = self.fixed_critics(transitions.observation, action)
        policy_loss = losses.soft_policy_loss(values[0], values[1], log_prob, temperature, transitions.weights)
        self._steps["actor"].take(policy_loss, info)
        if "temperature" in self._steps:
            temperature_loss = losses.temperature_loss(
                self._temperature.log, log_prob, self._target_entropy, transitions.weights
            )
            self._steps["temperature"].take(temperature_loss, info)
        self._target.follow(self.target_critics, self.critics, self.num_updates)
        return {
            "critic_loss": critic_loss.item(),
            "policy_loss": policy_loss.item(),
            "entropy": -log_prob.detach().mean().item(),
            "temperature": temperature.item(),
            "value": target.mean().item(),
        }


class _Temperature(nn.Module):
    """Alpha, as the weight `log`."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(temperature)))


__all__ = ["SAC", "SACLearner"]
