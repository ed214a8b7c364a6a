"""`ContinuousAgent`: what agents that learn continuous actions from replay share (SAC, TD3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.agents.agent import NetworkFactory, require
from ropewalk.rl.agents.replay_agent import ReplayAgent, transition_signature
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.networks.initialisation import POLICY_GAIN, orthogonal
from ropewalk.rl.networks.memoryless import without_memory
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.replay.table import ReplayTable

DEFAULT_NETWORK = MLP((256, 256), activation="relu")
"""The network of both papers."""

_DEFAULT_OPTIMIZER = TorchAdam(3e-4)


@dataclass(frozen=True, kw_only=True)
class ContinuousAgent(ReplayAgent):
    """Settings that SAC and TD3 share.

    Attributes:
        optimizer: makes the optimizer of each network, and of the temperature.
        critic_optimizer: makes that of the critics; None: as the others.
        discount: gamma.
        n_step: steps of rewards in a transition, before a critic's estimate follows.
        tau: share by which target networks move in an update.
        batch_size: transitions of a batch.
        unroll: T, steps of a block: actions of a block are chosen with the same weights.
        envs: N, environments of a group.
        replay_size: number of transitions that replay holds.
        learning_starts: number of transitions with which updates begin; actions are uniformly random until then.
        updates_per_step: number of updates for each step of an environment.
        max_grad_norm: gradients of a larger norm are scaled down to it; None: no bound.
        not_finite: whether an update with a NaN or infinite loss or gradient raises, or is skipped and counted.
        staleness_exponent: items whose actions were chosen with weights of s versions ago (updates, or rounds in
            lock-step) count (1 + s)^-exponent times, relative to the rest of the batch; 0: all count the same.
    """

    optimizer: OptimizerFactory = _DEFAULT_OPTIMIZER
    critic_optimizer: OptimizerFactory | None = None
    discount: float = 0.99
    n_step: int = 1
    tau: float = 0.005
    batch_size: int | None = 256
    unroll: int = 4
    envs: int = 1
    replay_size: int = 1_000_000
    learning_starts: int = 1_000
    updates_per_step: float = 1.0
    max_grad_norm: float | None = None
    not_finite: NotFiniteRule = "raise"
    staleness_exponent: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work together."""
        self.check_replay(self.learning_starts, (self.unroll + self.n_step - 1) * self.envs)
        require(self, "updates_per_step", self.updates_per_step > 0, "above 0")

    @property
    def name(self) -> str:
        """What messages call the agent."""
        return type(self).__name__

    def check(self, spec: EnvironmentSpec) -> None:
        """Raise if actions are not continuous, or have no finite bounds; see `Agent.check`."""
        ActionScaling.for_spec(spec, self.name)

    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        """Make a table that is sampled uniformly, `updates_per_step` batches for each transition."""
        return self.table_of(
            transition_signature(spec),
            groups=groups,
            seed=seed,
            samples_per_insert=self.items_of_batch(groups) * self.updates_per_step,
            learning_starts=self.learning_starts,
        )

    def make_adder(self, spec: EnvironmentSpec) -> NStepAdder:
        """Make the adder of transitions over `n_step` steps."""
        del spec
        return NStepAdder(self.n_step, self.discount, self.table)


def make_actor(network: NetworkFactory | None, spec: EnvironmentSpec, outputs: int, agent: str) -> nn.Sequential:
    """Make the network of a policy: the torso and a linear layer, whose first outputs are near 0.

    Args:
        network: makes the torso; None: `DEFAULT_NETWORK`.
        spec: observations and actions of the environment, by shape and type.
        outputs: number of outputs of the linear layer.
        agent: is named in errors.

    Raises:
        ValueError: the network has memory.
    """
    torso = without_memory(network or DEFAULT_NETWORK, spec, agent)
    return nn.Sequential(torso, orthogonal(nn.Linear(torso.features, outputs), POLICY_GAIN))


__all__ = ["DEFAULT_NETWORK", "ContinuousAgent", "make_actor"]
