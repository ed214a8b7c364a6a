"""A run in lock-step in this process: a round of blocks, then all updates that the limiter allows, then new weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from ropewalk.rl.actors.collector import Collector
from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.environments.environment import EnvironmentFactory
from ropewalk.rl.environments.vector import environment_spec, make_vector
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.variables import Variables


@dataclass
class LockstepRun:
    """What a run gave."""

    learner: Learner
    variables: Variables
    steps: int = 0
    updates: int = 0
    episodes: list[EpisodeEnd] = field(default_factory=list[EpisodeEnd])


def lockstep_run(
    agent: Agent, factory: EnvironmentFactory, network: NetworkFactory | None, *, steps: int, seed: int
) -> LockstepRun:
    spec = environment_spec(factory)
    agent.check(spec)
    batch_size = agent.batch_size
    assert batch_size is not None
    tables = ReplayTables(agent.make_tables(spec, groups=1, seed=seed))
    adder, learner = agent.make_adder(spec), agent.make_learner(spec, network, seed=seed)
    collector = Collector(agent.make_policy(spec, network), make_vector(factory, agent.envs, seed), seed)
    run = LockstepRun(learner, Variables(0, 0.0, learner.variables()))
    try:
        collector.load(run.variables)
        while run.steps < steps:
            block = collector.collect(agent.unroll)
            run.steps += block.steps
            run.episodes += block.episodes
            assert tables.insert(adder.add(block))
            while tables.can_sample(agent.table, batch_size) == batch_size:
                batch = tables.sample(agent.table, batch_size)
                update = learner.update(batch, run.steps / steps)
                if update.priorities is not None:
                    tables.update_priorities(agent.table, batch.info.keys, update.priorities)
                run.updates += 1
            if run.updates:
                run.variables = Variables(run.updates, run.steps / steps, learner.variables())
                collector.load(run.variables)
    finally:
        collector.close()
    return run
