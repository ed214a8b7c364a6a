"""`TD3`: twin delayed deep deterministic policy gradient. Fujimoto et al., 2018 (https://arxiv.org/abs/1802.09477).

a'        = clip(pi_target(x') + clip(noise))
y         = r + D min_c Q_c_target(x', a')                  algorithm 1
critics   descend (Q_c(x, a) - y)^2                         c = 1, 2
and in every `policy_delay`-th update:
policy    descends -Q_1(x, pi(x))
targets   move by tau towards policy and critics
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.rl.agents.agent import NetworkFactory, require
from ropewalk.rl.agents.continuous import DEFAULT_NETWORK, ContinuousAgent, make_actor
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.actor_critics import ActorCriticsLearner
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.targets import Polyak, target_of
from ropewalk.rl.learners.transitions import Transitions
from ropewalk.rl.losses import td3 as losses
from ropewalk.rl.networks.critics import Critics
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.deterministic import DeterministicPolicy
from ropewalk.rl.replay.batch import SampleInfo
from ropewalk.rl.seeds import derived_seed


@dataclass(frozen=True, kw_only=True)
class TD3(ContinuousAgent):
    """Twin delayed deterministic policy gradient, for continuous actions with bounds.

    Without a network it has two hidden layers of 256 with ReLU. Networks have no memory. All noise is in canonical
    units, in which the bounds are -1 and 1.

    Attributes:
        exploration: standard deviation of the noise on actions.
        target_noise: standard deviation of the noise on the target policy's actions.
        target_noise_clip: bound of that noise.
        policy_delay: updates of the critics for each one of policy and targets.
        cloning_alpha: for recorded data, the weight of values against the squared error to recorded actions (TD3+BC,
            https://arxiv.org/abs/2106.06860; 2.5 in the paper); None: values alone, as in TD3.
    """

    exploration: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2
    cloning_alpha: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        require(self, "policy_delay", self.policy_delay >= 1, "at least 1 update")

    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> DeterministicPolicy:
        """Make a policy that adds noise for exploration, unless it acts greedily."""
        del group, groups
        scaling = ActionScaling.for_spec(spec, self.name)
        return DeterministicPolicy(make_deterministic_actor(network, spec, self.name), scaling, self.exploration)

    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> TD3Learner:
        """Make the learner, with weights that follow from the seed."""
        return TD3Learner(self, spec, network, seed=seed, device=device)


class TD3Learner(ActorCriticsLearner):
    """Trains policy and critics.

    Args:
        settings: the agent.
        spec: observations and actions of the environment, by shape and type.
        network: makes the torsos of policy and critics; None: the default.
        seed: seed of weights and noise.
        device: where to train.
    """

    def __init__(
        self, settings: TD3, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> None:
        with seeded(derived_seed(seed, "weights")):
            actor = make_deterministic_actor(network, spec, settings.name)
            critics = Critics(network or DEFAULT_NETWORK, spec)
        scaling = ActionScaling.for_spec(spec, settings.name)
        super().__init__(
            actor, critics, scaling, derived_seed(seed, "noise"), device, staleness_exponent=settings.staleness_exponent
        )
        self._target_actor = target_of(self.actor)
        self._settings, self._target = settings, Polyak(settings.tau)
        critic_optimizer = settings.critic_optimizer or settings.optimizer
        self._steps = {
            "critics": settings.gradient_step(self.critics, critic_optimizer),
            "actor": settings.gradient_step(self.actor, settings.optimizer),
        }

    def modules(self) -> dict[str, nn.Module]:
        """Return all that has weights, by name."""
        return {
            "actor": self.actor,
            "critics": self.critics,
            "target_actor": self._target_actor,
            "target_critics": self.target_critics,
        }

    def steps(self) -> dict[str, GradientStep]:
        """Return all optimizers, by name."""
        return self._steps

    def train(self, transitions: Transitions, info: SampleInfo) -> dict[str, float]:
        """Do an update, in the order of the module's lines; see `ActorCriticsLearner`."""
        target = self._target_values(transitions)
        values = self.critics(transitions.observation, transitions.action)
        critic_loss = losses.critic_loss(values, target, transitions.weights)
        self._steps["critics"].take(critic_loss, info)
        metrics = {"critic_loss": critic_loss.item(), "value": target.mean().item()}
        if self.num_updates % self._settings.policy_delay == 0:
            action = self.actor(transitions.observation)
            values = self.fixed_critics(transitions.observation, action)
            alpha = self._settings.cloning_alpha
            if alpha is None:
                policy_loss = losses.policy_loss(values, transitions.weights)
            else:
                policy_loss = losses.cloning_policy_loss(values, action, transitions.action, alpha)
            self._steps["actor"].take(policy_loss, info)
            self._target.follow(self.target_critics, self.critics, self.num_updates)
            self._target.follow(self._target_actor, self.actor, self.num_updates)
            metrics["policy_loss"] = policy_loss.item()
        return metrics

    @torch.no_grad()
    def _target_values(self, transitions: Transitions) -> Tensor:
        action = self._target_actor(transitions.next_observation)
        noise = torch.randn(action.shape, generator=self.generator, device=self.device)
        noise *= self._settings.target_noise
        action = losses.smoothed_action(action, noise, self._settings.target_noise_clip)
        next_values = self.target_critics(transitions.next_observation, action)
        return losses.clipped_double_target(transitions.reward, transitions.discount, next_values)


def make_deterministic_actor(network: NetworkFactory | None, spec: EnvironmentSpec, agent: str) -> nn.Sequential:
    """Make a network that maps observations (B, ...) to canonical actions (B, A)."""
    return nn.Sequential(*make_actor(network, spec, spec.action_array.shape[0], agent), nn.Tanh())


__all__ = ["TD3", "TD3Learner", "make_deterministic_actor"]
