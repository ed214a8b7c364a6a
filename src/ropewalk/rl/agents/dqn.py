"""`DQN`: learns the values of discrete actions from replayed transitions, with the improvements of Rainbow as switches.

    setting                         paper
    (all off)                       Mnih et al. 2015, Human-level control through deep reinforcement learning
    double                          van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461
    prioritized, beta               Schaul et al. 2016, https://arxiv.org/abs/1511.05952
    dueling                         Wang et al. 2016, https://arxiv.org/abs/1511.06581
    n_step                          Sutton 1988; Hessel et al. 2018, https://arxiv.org/abs/1710.02298 (Rainbow)
    distributional="c51"            Bellemare et al. 2017, https://arxiv.org/abs/1707.06887
    distributional="quantile"       Dabney et al. 2018, https://arxiv.org/abs/1710.10044
    noisy                           Fortunato et al. 2018, https://arxiv.org/abs/1706.10295

How the settings of other libraries map onto these. They say "after every F steps, G updates"; here the table's limiter
says how many samples each inserted item is worth, and each update takes `batch_size` of them, so that

    updates per environment step = samples_per_insert / batch_size = G / F

In lock-step, after each round of unroll x envs x groups steps the learner does all updates that the limiter allows:
floor((owed - owed_at_least) / batch_size), where owed = items inserted x samples_per_insert - samples taken. With
unroll x envs x groups = F that is G updates after every F steps. 64 updates after 256 steps, with batches of 256, is
samples_per_insert = 64; one update per four steps with batches of 32 (Atari) is samples_per_insert = 8. The remainder
of the division is carried over, and nothing is owed for the first `learning_starts` items but one round's updates.

The period of `TargetCopy` counts updates. Libraries that count environment steps copy only while they collect: Stable
Baselines' setting for CartPole, a copy every 10 steps beside 128 updates after 256 steps, is TargetCopy(128). A copy
every 10 updates diverges there (mean score 9 after 16,000 steps, where TargetCopy(128) scores 147).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ropewalk.near_names import check_choice
from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.agents.agent import NetworkFactory
from ropewalk.rl.agents.discrete_actions import make_action_values, num_discrete_actions
from ropewalk.rl.agents.replay_agent import transition_signature
from ropewalk.rl.agents.value_agent import ValueAgent
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.dqn_learner import DQNLearner
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.targets import TargetCopy, TargetRule
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.value_distributions import CategoricalReturn, QuantileReturn, ReturnKind, ScalarReturn
from ropewalk.rl.policies.epsilon_greedy import EpsilonGreedy
from ropewalk.rl.policies.exploration import AnnealedEpsilon
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.schedules import LinearSchedule

DEFAULT_NETWORK = MLP((64, 64), "relu", layer_norm=True)
"""Layers are normalised as in Gallici et al. 2024 (https://arxiv.org/abs/2407.04811), who prove what it does for TD."""

Distributional: TypeAlias = Literal["none", "c51", "quantile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DQN(ValueAgent):
    """Settings of DQN. There are `samples_per_insert / batch_size` updates for each step.

    Mnih et al., Human-level control through deep reinforcement learning, 2015; its improvements are those of Hessel
    et al., Rainbow, 2018 (https://arxiv.org/abs/1710.02298).

    The defaults suit small problems such as CartPole: an update after every 4 steps, and a copy of the target network
    after every 256. With batches of 64 or a learning rate that stays the same, the score of the greedy policy on
    CartPole went up and down between 100 and 500 to the end. For images see `Rainbow`. The default network is
    `rl.MLP((64, 64), "relu", layer_norm=True)`. Without the normalisation, an update raises the values of states that
    are further out more than those that it learns from, and bootstrapping may diverge: with seed 0 on CartPole to mean
    values of 1,480, where 100 is the largest possible one.

    Args:
        unroll: T, steps of a block.
        envs: N, environments of a group.
        batch_size: transitions of an update.
        optimizer: optimizer of the network.
        anneal_learning_rate: whether the learning rate falls linearly, to 0 at the end of the experiment.
        max_grad_norm: gradients of a larger norm are scaled down to it; None: no bound.
        not_finite: whether a NaN or infinite loss raises or is skipped.
        staleness_exponent: items whose actions were chosen with weights of s versions ago (updates, or rounds in
            lock-step) count (1 + s)^-exponent times, relative to the rest of the batch; 0: all count the same.
        discount: gamma, per step.
        n_step: steps of a transition.
        double: choose the next action by the online network and value it by the target network.
        dueling: value and advantages apart.
        noisy: explore by noise in the weights; set `epsilon` to 0 with it, as `Rainbow` does.
        hidden: units of a hidden layer of the head, or of each of its streams; 0 for none.
        distributional: learn the mean of returns, or their distribution.
        atoms: number of atoms, for "c51".
        return_bounds: the least and the largest return, for "c51".
        quantiles: number of quantiles, for "quantile".
        huber: errors count squared up to this size, and linearly beyond; None: squared. For "quantile" it is the kappa
            of the quantile Huber loss, where None or 0 means no smoothing; "c51" has none.
        prioritized: sample by priority rather than uniformly.
        priority_exponent: alpha, 0 for uniform sampling.
        beta: exponent of importance weights by progress, with `prioritized`.
        target: when the target network follows.
        learning_starts: items in replay before the first update.
        samples_per_insert: samples taken for each inserted transition; updates per step times `batch_size`.
        replay_size: transitions in replay; the oldest leave.
        epsilon: share of random actions by progress.
        evaluation_epsilon: share of random actions of evaluators.
    """

    unroll: int = 64
    envs: int = 4
    batch_size: int | None = 256
    optimizer: OptimizerFactory = TorchAdam(1e-3)
    anneal_learning_rate: bool = True
    max_grad_norm: float | None = 10.0
    not_finite: NotFiniteRule = "raise"
    staleness_exponent: float = 0.0
    discount: float = 0.99
    n_step: int = 3
    double: bool = True
    dueling: bool = False
    noisy: bool = False
    hidden: int = 0
    distributional: Distributional = "none"
    atoms: int = 51
    return_bounds: tuple[float, float] = (-10.0, 10.0)
    quantiles: int = 200
    huber: float | None = 1.0
    prioritized: bool = False
    priority_exponent: float = 0.6
    beta: LinearSchedule = LinearSchedule(0.4, 1.0)
    target: TargetRule = TargetCopy(64)
    learning_starts: int = 1_000
    samples_per_insert: float = 64.0
    replay_size: int = 100_000
    epsilon: LinearSchedule = LinearSchedule(1.0, 0.05, until=0.16)
    evaluation_epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, before anything starts."""
        check_choice("distributional", self.distributional, ("none", "c51", "quantile"))
        self.check_target()
        self.check_replay(self.learning_starts, (self.unroll + self.n_step - 1) * self.envs)
        self.returns()

    def check(self, spec: EnvironmentSpec) -> None:
        """Raise if actions are not discrete."""
        num_discrete_actions(type(self).__name__, spec)

    def returns(self) -> ReturnKind:
        """Return what the network's outputs mean."""
        match self.distributional:
            case "none":
                return ScalarReturn()
            case "c51":
                return CategoricalReturn(*self.return_bounds, self.atoms)
            case "quantile":
                return QuantileReturn(self.quantiles)

    def make_network(self, spec: EnvironmentSpec, network: NetworkFactory | None, seed: int) -> ActionValueNetwork:
        """Make the network of policies and learners, with weights that follow from the seed.

        Raises:
            ValueError: the torso has memory.
        """
        made = make_action_values(
            type(self).__name__,
            spec,
            network or DEFAULT_NETWORK,
            seed,
            returns=self.returns(),
            dueling=self.dueling,
            noisy=self.noisy,
            hidden=self.hidden,
        )
        if state := made.initial_state(1):
            raise ValueError(
                f"{type(self).__name__} learns from single transitions, but the network has the recurrent state "
                f"{', '.join(state)}; use R2D2, or a network without memory such as rl.MLP"
            )
        return made

    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> EpsilonGreedy:
        """Make the policy of a group; all groups have the same epsilon."""
        del group, groups
        return EpsilonGreedy(
            self.make_network(spec, network, 0),
            AnnealedEpsilon(self.epsilon),
            evaluation_epsilon=self.evaluation_epsilon,
        )

    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> DQNLearner:
        """Make the learner, with weights that follow from the seed."""
        made = self.make_network(spec, network, seed).to(device)
        return DQNLearner(
            made,
            self.gradient_step(made),
            self.value_settings(),
            seed,
            double=self.double,
            huber=self.huber,
        )

    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        """Make the table of transitions."""
        return self.table_of_values(transition_signature(spec), groups=groups, seed=seed)

    def make_adder(self, spec: EnvironmentSpec) -> NStepAdder:
        """Make what turns blocks into transitions of `n_step` steps."""
        del spec
        return NStepAdder(self.n_step, self.discount, self.table)


__all__ = ["DEFAULT_NETWORK", "DQN", "Distributional"]
