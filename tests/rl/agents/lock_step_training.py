"""Trains an agent in lock-step in this process, with the parts as an experiment puts them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean

from ropewalk.rl.actors.collector import Collector
from ropewalk.rl.actors.evaluator import evaluate_policy
from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.environments.environment import EnvironmentFactory
from ropewalk.rl.environments.vector import environment_spec, make_vector
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.variables import Variables


@dataclass(slots=True)
class Trained:
    """How training went.

    Attributes:
        learner: with the weights.
        policy: acts with them.
        steps: environment steps.
        updates: of the learner.
        scores: of the actors' episodes, in order.
    """

    learner: Learner
    policy: Policy
    steps: int = 0
    updates: int = 0
    scores: list[float] = field(default_factory=list[float])


def train(
    agent: Agent,
    factory: EnvironmentFactory,
    network: NetworkFactory | None = None,
    *,
    steps: int,
    seed: int = 0,
    groups: int = 1,
    enough: Callable[[Trained], bool] = lambda _: False,
) -> Trained:
    """Train until that many steps are done or `enough` says so after a round."""
    spec = environment_spec(factory)
    agent.check(spec)
    replay = ReplayTables(agent.make_tables(spec, groups=groups, seed=seed))
    policies = [agent.make_policy(spec, network, group=group, groups=groups) for group in range(groups)]
    adders = [agent.make_adder(spec) for _ in range(groups)]
    collectors = [
        Collector(policy, make_vector(factory, agent.envs, seed, group), seed, group)
        for group, policy in enumerate(policies)
    ]
    done = Trained(agent.make_learner(spec, network, seed=seed), policies[0])
    batch_size = agent.items_of_batch(groups)
    rounds = 0
    while done.steps < steps and not enough(done):
        variables = Variables(rounds, done.steps / steps, done.learner.variables())
        for collector, adder in zip(collectors, adders, strict=True):
            collector.load(variables)
            block = collector.collect(agent.unroll)
            insertion = adder.add(block)
            assert replay.can_insert(insertion), "the limiter has to let a round in after the updates of the last one"
            replay.insert(insertion)
            done.steps += block.steps
            done.scores += [episode.score for episode in block.episodes]
        while replay.can_sample(agent.table, batch_size) == batch_size:
            batch = replay.sample(agent.table, batch_size)
            update = done.learner.update(batch, done.steps / steps)
            if update.priorities is not None:
                replay.update_priorities(agent.table, batch.info.keys, update.priorities)
            done.updates += 1
        rounds += 1
    for collector in collectors:
        collector.close()
    done.policy.load(Variables(rounds, done.steps / steps, done.learner.variables()))
    return done


def score_of(trained: Trained, factory: EnvironmentFactory, episodes: int = 20) -> float:
    """Return the mean score of episodes without exploration."""
    return float(evaluate_policy(trained.policy, factory, episodes, seed=0).mean())


def reaches(score: float, episodes: int = 50) -> Callable[[Trained], bool]:
    """Whether that many episodes of training had this mean score, in a row, at last."""
    return lambda trained: len(trained.scores) >= episodes and mean(trained.scores[-episodes:]) >= score
