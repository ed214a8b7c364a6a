"""Trains an agent in one process, in lock-step: what an experiment does, without counters, logs and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean

from ropewalk.rl.actors.collector import Collector
from ropewalk.rl.actors.evaluator import evaluate_policy
from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.environments.environment import EnvironmentFactory
from ropewalk.rl.environments.vector import environment_spec, make_vector
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.variables import Variables


@dataclass
class Training:
    """What came out of it."""

    learner: Learner
    steps: int = 0
    updates: list[Update] = field(default_factory=list[Update])
    episodes: list[float] = field(default_factory=list[float])
    score: float = 0.0
    """Mean of 20 greedy episodes."""


def train(
    agent: Agent,
    environment: EnvironmentFactory,
    *,
    steps: int,
    seed: int = 0,
    groups: int = 1,
    network: NetworkFactory | None = None,
    enough: float = float("inf"),
) -> Training:
    """Collect with the newest weights, learn from what the tables let be sampled, until the steps are done.

    It ends earlier when the mean score of the last 50 training episodes reaches `enough`.
    """
    spec = environment_spec(environment)
    agent.check(spec)
    learner = agent.make_learner(spec, network, seed=seed)
    tables = ReplayTables(agent.make_tables(spec, groups=groups, seed=seed))
    training = Training(learner)
    collectors = [
        Collector(
            agent.make_policy(spec, network, group=group, groups=groups),
            make_vector(environment, agent.envs, seed, group),
            seed,
            group,
        )
        for group in range(groups)
    ]
    adders = [agent.make_adder(spec) for _ in range(groups)]
    batch_size = agent.items_of_batch(groups)
    variables = Variables(0, 0.0, learner.variables())
    try:
        while training.steps < steps and mean(training.episodes[-50:] or [-float("inf")]) < enough:
            for collector, adder in zip(collectors, adders, strict=True):
                collector.load(variables)
                block = collector.collect(agent.unroll)
                training.steps += block.steps
                training.episodes += [episode.score for episode in block.episodes]
                tables.insert(adder.add(block))
            progress = min(training.steps / steps, 1.0)
            while tables.can_sample(agent.table, batch_size) == batch_size:
                training.updates.append(learner.update(tables.sample(agent.table, batch_size), progress))
                learner.version += 1
            variables = Variables(learner.version, progress, learner.variables())
    finally:
        for collector in collectors:
            collector.close()
    policy = agent.make_policy(spec, network)
    policy.load(variables)
    training.score = float(evaluate_policy(policy, environment, 20, seed=seed).mean())
    return training
