"""`Assembly`: makes the parts of an experiment, the same ones in whichever process asks for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.rl.actors.collector import Collector, CollectorHistory
from ropewalk.rl.actors.evaluator import MAX_STEPS, PolicyEvaluator
from ropewalk.rl.environments.histories import fresh_history
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.environments.vector import environment_spec, make_vector
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.round_learner import RoundLearner
from ropewalk.rl.seeds import derived_seed

if TYPE_CHECKING:
    from ropewalk.rl.experiment import Experiment


@dataclass(frozen=True)
class Assembly:
    """Makes the parts of an experiment.

    Args:
        experiment: the settings.
        groups: number of groups of environments.
        lag: rounds by which the weights of actors are behind in lock-step.
        rank: rank of the learner for which these are, if there are several.
    """

    experiment: Experiment
    groups: int
    lag: int = 0
    rank: int = 0

    def share(self, rank: int, num_ranks: int) -> Assembly:
        """Return the assembly of one of several learners, whose replay gets the groups rank, rank + num_ranks, ..."""
        return replace(self, groups=len(range(rank, self.groups, num_ranks)), rank=rank)

    def spec(self, *, tells: bool = False) -> EnvironmentSpec:
        """Return the environment's spec, after checking that the agent can be used with it.

        Args:
            tells: whether to log what is likely to go wrong with the environment; once is enough.

        Raises:
            ValueError: it cannot.
        """
        spec = environment_spec(self.experiment.environment, tells=tells)
        self.experiment.agent.check(spec)
        return spec

    def learner(self, spec: EnvironmentSpec) -> Learner:
        """Make the learner, with weights that follow from the experiment's seed."""
        experiment = self.experiment
        seed = derived_seed(experiment.seed, "learner")
        return experiment.agent.make_learner(spec, experiment.network, seed=seed, device=experiment.device)

    def round_learner(self, spec: EnvironmentSpec) -> RoundLearner:
        """Make what learns from rounds."""
        experiment, agent = self.experiment, self.experiment.agent
        return RoundLearner(
            self.learner(spec),
            self.tables(spec),
            [agent.make_adder(spec) for _ in range(self.groups)],
            table=agent.table,
            batch_size=self.batch_size,
            total_steps=experiment.steps,
            digest_every=experiment.digest_every,
        )

    def tables(self, spec: EnvironmentSpec) -> ReplayTables:
        """Make the tables of replay."""
        seed = derived_seed(self.experiment.seed, "replay", *([self.rank] if self.rank else []))
        return ReplayTables(self.experiment.agent.make_tables(spec, groups=self.groups, seed=seed))

    @property
    def batch_size(self) -> int:
        """Items of a batch."""
        return self.experiment.agent.items_of_batch(self.groups)

    def policy(self, spec: EnvironmentSpec, group: int) -> Policy:
        """Make the policy of a group; it has no weights yet.

        Groups of actors that were added to a running program explore as the first ones do, in the same order.
        """
        agent, rung = self.experiment.agent, group % self.groups
        policy = agent.make_policy(spec, self.experiment.network, group=rung, groups=self.groups)
        policy.spec = spec
        return policy

    def policy_of(self, group: int) -> Policy:
        """As `policy`, for processes that have no use for the spec otherwise."""
        return self.policy(self.spec(), group)

    def beginning(self, policy: Policy) -> CollectorHistory:
        """Return where every group begins."""
        num_envs = self.experiment.agent.envs
        return CollectorHistory(fresh_history(num_envs), 0, policy.initial_state(num_envs), np.zeros(num_envs))

    def collector(
        self,
        policy: Policy,
        group: int,
        *,
        history: CollectorHistory | None = None,
        life: int = 0,
        keeps_history: bool = False,
    ) -> Collector:
        """Make the collector of a group, which goes on from `history`, and can tell its own if it keeps one."""
        experiment = self.experiment
        environment = make_vector(
            experiment.environment,
            experiment.agent.envs,
            experiment.seed,
            group,
            life=life,
            keeps_history=keeps_history,
        )
        goes_on = history if history is not None and history.block else None
        return Collector(policy, environment, experiment.seed, group, life, history=goes_on)

    def evaluator(self) -> PolicyEvaluator:
        """Make what evaluates policies in this experiment's environment."""
        evaluation = self.experiment.evaluation
        return PolicyEvaluator(self.experiment.environment, evaluation.max_steps if evaluation else MAX_STEPS)


__all__ = ["Assembly"]
