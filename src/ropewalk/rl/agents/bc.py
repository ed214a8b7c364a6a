"""`BC`: behaviour cloning, which learns to do what was recorded. Pomerleau, ALVINN, 1988.

Continuous actions are those of a deterministic policy, which descends the squared error of canonical actions. Choices
are drawn from a distribution, which ascends the logarithm of the probability of the recorded ones; an evaluator takes
the most probable one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.agents.agent import NetworkFactory, require
from ropewalk.rl.agents.continuous import make_actor
from ropewalk.rl.agents.replay_agent import ReplayAgent, transition_signature
from ropewalk.rl.agents.td3 import make_deterministic_actor
from ropewalk.rl.environments.spec import Array, ContinuousAction, EnvironmentSpec
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.transitions import as_tensor, observation_tensor
from ropewalk.rl.losses import cloning
from ropewalk.rl.networks.distributions import ActionDistribution, for_spec
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.deterministic import DeterministicPolicy
from ropewalk.rl.policies.distribution_policy import DistributionPolicy
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.seeds import derived_seed

_DEFAULT_OPTIMIZER = TorchAdam(1e-3)


@dataclass(frozen=True, kw_only=True)
class BC(ReplayAgent):
    """Behaviour cloning, for `rl.train_offline`. Networks have no memory.

    Pomerleau, ALVINN: An Autonomous Land Vehicle in a Neural Network, 1988.

    Attributes:
        optimizer: makes the optimizer.
        batch_size: transitions of a batch.
        max_grad_norm: gradients of a larger norm are scaled down to it; None: no bound.
        not_finite: whether an update with a NaN or infinite loss or gradient raises, or is skipped and counted.
        unroll: T, steps of a block, where it is run in environments.
        envs: N, environments of a group.
        replay_size: number of transitions that replay holds; data sets are held whole.
    """

    optimizer: OptimizerFactory = _DEFAULT_OPTIMIZER
    batch_size: int | None = 256
    max_grad_norm: float | None = None
    not_finite: NotFiniteRule = "raise"
    unroll: int = 16
    envs: int = 1
    replay_size: int = 1_000_000

    def __post_init__(self) -> None:
        """Refuse a batch without transitions."""
        require(self, "batch_size", (self.batch_size or 0) >= 1, "a number of transitions, such as 64")

    def check(self, spec: EnvironmentSpec) -> None:
        """Raise if actions are continuous and have no finite bounds."""
        if isinstance(spec.action, ContinuousAction):
            ActionScaling.for_spec(spec, "BC")

    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> Policy:
        """Make the policy that acts as was recorded."""
        del group, groups
        if isinstance(spec.action, ContinuousAction):
            actor = make_deterministic_actor(network, spec, "BC")
            return DeterministicPolicy(actor, ActionScaling.for_spec(spec, "BC"), noise=0.0)
        distribution = for_spec(spec.action)
        return DistributionPolicy(make_actor(network, spec, distribution.size, "BC"), distribution)

    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> BCLearner:
        """Make the learner, with weights that follow from the seed."""
        return BCLearner(self, spec, network, seed=seed, device=device)

    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        """Make a table that is sampled uniformly, one batch for each transition."""
        return self.table_of(
            transition_signature(spec),
            groups=groups,
            seed=seed,
            samples_per_insert=self.items_of_batch(groups),
            learning_starts=1,
        )

    def make_adder(self, spec: EnvironmentSpec) -> NStepAdder:
        """Make the adder of transitions."""
        del spec
        return NStepAdder(1, 1.0, self.table)


class BCLearner(Learner):
    """Trains the policy on observations and actions; other columns of batches are not read.

    Args:
        settings: the agent.
        spec: observations and actions of the environment, by shape and type.
        network: makes the torso; None: two hidden layers of 256 with ReLU.
        seed: seed of the weights.
        device: where to train.
    """

    def __init__(
        self, settings: BC, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> None:
        self.num_updates: int = 0
        self._device = torch.device(device)
        self._scaling: ActionScaling | None = None
        self._distribution: ActionDistribution | None = None
        with seeded(derived_seed(seed, "weights")):
            if isinstance(spec.action, ContinuousAction):
                self._scaling = ActionScaling.for_spec(spec, "BC")
                actor = make_deterministic_actor(network, spec, "BC")
            else:
                self._distribution = for_spec(spec.action)
                actor = make_actor(network, spec, self._distribution.size, "BC")
        self.actor: nn.Module = actor.to(self._device)
        self._published = ModuleArrays(self.actor)
        self._step = settings.gradient_step(self.actor)

    def update(self, batch: Batch, progress: float) -> Update:
        """Learn from one batch; see `Learner.update`."""
        del progress
        self.num_updates += 1
        loss = self._loss(batch.columns)
        norm = self._step.take(loss, batch.info)
        metrics = {"loss": loss.item(), "gradient_norm": norm}
        if self._step.num_skipped:
            metrics["skipped"] = float(self._step.num_skipped)
        return Update(metrics)

    def _loss(self, columns: Mapping[str, Array]) -> Tensor:
        output = self.actor(observation_tensor(columns, "observation", self._device))
        if self._scaling is not None:
            recorded = torch.as_tensor(self._scaling.to_canonical(columns["action"]), device=self._device)
            return cloning.action_loss(output, recorded)
        assert self._distribution is not None
        return cloning.likelihood_loss(self._distribution.log_prob(output, as_tensor(columns["action"], self._device)))

    def variables(self) -> dict[str, Array]:
        """Return copies of the weights."""
        return self._published.copied()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the weights, the optimizer's state, and the number of updates."""
        state = {"actor": self.actor.state_dict(), "step": self._step.state_dict(), "num_updates": self.num_updates}
        return copy.deepcopy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, which is not changed by later updates."""
        state = copy.deepcopy(dict(state))  # optimizers keep the tensors that they are given
        self.actor.load_state_dict(state["actor"])
        self._step.load_state_dict(state["step"])
        self.num_updates = state["num_updates"]


__all__ = ["BC", "BCLearner"]
