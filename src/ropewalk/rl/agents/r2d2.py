"""`R2D2`: DQN with memory, distributed (Kapturowski et al. 2019, Recurrent Experience Replay in Distributed RL).

It learns from sequences of `burn_in + trace + 1` rows, which begin every `period` steps, at the first step of a block,
so that the recurrent state is stored with them. Sequences run across the ends of episodes, as in SEED RL: the state is
reset there. The last row is only bootstrapped from, hence the one more row.

Inputs of the network are what the environment shows. The paper's network also sees the last action and the last reward:
wrap the environment for that.

Updates per step: each sequence is sampled `samples_per_insert` times, and one comes from `period` steps of an
environment, so that a batch's update is done every period * batch_size / samples_per_insert environment steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.adders.sequence import SequenceAdder
from ropewalk.rl.agents.agent import NetworkFactory
from ropewalk.rl.agents.discrete_actions import make_action_values, num_discrete_actions
from ropewalk.rl.agents.value_agent import ValueAgent
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.gradient_step import NotFiniteRule
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.r2d2_learner import R2D2Learner
from ropewalk.rl.learners.targets import TargetCopy, TargetRule
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.policies.epsilon_greedy import EpsilonGreedy
from ropewalk.rl.policies.exploration import EpsilonLadder
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.schedules import LinearSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D2(ValueAgent):
    """Settings of R2D2: DQN with a memory. The defaults are the paper's, except for `unroll`, which it does not have.

    Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning, 2019
    (https://openreview.net/forum?id=r1lyTjAqYX).

    Args:
        unroll: T, steps of a block; `period` must be a multiple of it.
        envs: N, environments of a group.
        batch_size: sequences of an update.
        optimizer: optimizer of the network.
        anneal_learning_rate: whether the learning rate falls linearly, to 0 at the end of the experiment.
        max_grad_norm: gradients of a larger norm are scaled down to it; None: no bound. 40 in SEED RL.
        not_finite: whether a NaN or infinite loss raises or is skipped.
        staleness_exponent: items whose actions were chosen with weights of s versions ago (updates, or rounds in
            lock-step) count (1 + s)^-exponent times, relative to the rest of the batch; 0: all count the same.
        discount: gamma, per step.
        n_step: steps before the bootstrap.
        burn_in: rows at the begin of a sequence that only bring the recurrent state up to date.
        trace: steps of a sequence that are learned from.
        period: steps from one sequence to the next one.
        dueling: value and advantages apart.
        hidden: units of a hidden layer of the head, or of each of its streams; 0 for none.
        rescaling: epsilon of the values' rescaling; None: none.
        eta: share of the largest error in the priority of a sequence; the rest is that of the mean.
        prioritized: sample by priority rather than uniformly.
        priority_exponent: alpha, 0 for uniform sampling.
        beta: exponent of importance weights by progress, with `prioritized`.
        target: when the target network follows.
        learning_starts: sequences in replay before the first update.
        samples_per_insert: samples taken for each inserted sequence.
        replay_size: sequences in replay; the oldest leave.
        epsilon_base: epsilon of the environment that explores most.
        epsilon_exponent: epsilon of the one that explores least is base^(1 + exponent).
        evaluation_epsilon: share of random actions of evaluators.
    """

    items = "sequences"

    unroll: int = 40
    envs: int = 8
    batch_size: int | None = 64
    optimizer: OptimizerFactory = TorchAdam(1e-4, eps=1e-3)
    anneal_learning_rate: bool = False
    max_grad_norm: float | None = 40.0
    not_finite: NotFiniteRule = "raise"
    staleness_exponent: float = 0.0
    discount: float = 0.997
    n_step: int = 5
    burn_in: int = 40
    trace: int = 80
    period: int = 40
    dueling: bool = True
    hidden: int = 0
    rescaling: float | None = 1e-3
    eta: float = 0.9
    prioritized: bool = True
    priority_exponent: float = 0.9
    beta: LinearSchedule = LinearSchedule(0.6, 0.6)
    target: TargetRule = TargetCopy(2_500)
    learning_starts: int = 1_000
    samples_per_insert: float = 4.0
    replay_size: int = 100_000
    epsilon_base: float = 0.4
    epsilon_exponent: float = 7.0
    evaluation_epsilon: float = 1e-3

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, before anything starts."""
        if self.period % self.unroll:
            raise ValueError(
                f"period={self.period} is not a multiple of unroll={self.unroll}: sequences begin where blocks do, "
                "because the recurrent state is stored there"
            )
        if self.burn_in < 0 or self.trace < 1:
            raise ValueError(
                f"burn_in={self.burn_in} and trace={self.trace}: a sequence needs at least 0 rows of burn-in and at "
                "least 1 step to learn from"
            )
        self.check_target()
        self.check_replay(self.learning_starts, self.envs)

    def check(self, spec: EnvironmentSpec) -> None:
        """Raise if actions are not discrete."""
        num_discrete_actions("R2D2", spec)

    def make_network(self, spec: EnvironmentSpec, network: NetworkFactory | None, seed: int) -> ActionValueNetwork:
        """Make the network of policies and learners, with weights that follow from the seed."""
        torso = network or LSTM(MLP((64,), "relu"), 64)
        return make_action_values("R2D2", spec, torso, seed, dueling=self.dueling, hidden=self.hidden)

    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> EpsilonGreedy:
        """Make the policy of a group, whose environments have their own rungs of the ladder of epsilons."""
        return EpsilonGreedy(
            self.make_network(spec, network, 0),
            EpsilonLadder(group, groups, self.epsilon_base, self.epsilon_exponent),
            evaluation_epsilon=self.evaluation_epsilon,
        )

    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> R2D2Learner:
        """Make the learner, with weights that follow from the seed."""
        made = self.make_network(spec, network, seed).to(device)
        return R2D2Learner(
            made,
            self.gradient_step(made),
            self.value_settings(),
            seed,
            burn_in=self.burn_in,
            n_step=self.n_step,
            discount=self.discount,
            rescaling=self.rescaling,
            eta=self.eta,
        )

    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        """Make the table of sequences."""
        del spec
        return self.table_of_values(None, groups=groups, seed=seed, items_per_round=self.envs * groups)

    def make_adder(self, spec: EnvironmentSpec) -> SequenceAdder:
        """Make what turns blocks into sequences."""
        del spec
        return SequenceAdder(self.burn_in + self.trace + 1, self.period, self.table)


__all__ = ["R2D2"]
