"""`train_offline`: trains an agent on recorded data alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.offline.dataset import OfflineDataset
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.saved_policies import save_policy
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.variables import Variables

BLOCK_STEPS = 1_024
"""Steps of the blocks in which a data set is inserted."""


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """The result of training on recorded data.

    Attributes:
        agent: what was trained.
        spec: observations and actions of the environment, by shape and type.
        network: what made its networks.
        learner: with all that it has learned; more updates can follow.
        timeline: metrics of every `record_every`-th update, with its number as "updates".
    """

    agent: Agent
    spec: EnvironmentSpec
    network: NetworkFactory | None
    learner: Learner
    timeline: tuple[Mapping[str, float], ...]

    @property
    def variables(self) -> Variables:
        """The weights that policies act with."""
        return Variables(1, 1.0, self.learner.variables())

    def policy(self) -> Policy:
        """Return the trained policy, for `rl.evaluate_policy`."""
        policy = self.agent.make_policy(self.spec, self.network)
        policy.load(self.variables)
        return policy

    def save(self, path: Path | str) -> None:
        """Write the trained policy to a file, which `rl.load_policy` reads; see `ExperimentResult.save`."""
        save_policy(path, self.agent, self.spec, self.network, self.variables)


def offline_tables(agent: Agent, dataset: OfflineDataset, *, seed: int) -> ReplayTables:
    """Return the agent's tables with a whole data set in them, as its adder makes items of it.

    They hold all of the data, and are sampled without limits.

    Args:
        agent: makes tables and adder.
        dataset: what is inserted.
        seed: seed of the draws.

    Raises:
        ValueError: the agent's items are sampled once, so it learns only from experience of its own weights.
        NotFinite: a reward or an observation is NaN or infinite.
    """
    settings = [
        replace(table, limiter=MinSize(1), max_size=max(table.max_size, dataset.num_steps))
        for table in agent.make_tables(dataset.spec, groups=1, seed=seed)
        if not table.max_times_sampled
    ]
    if agent.synchronous or agent.table not in {table.name for table in settings}:
        raise ValueError(
            f"{type(agent).__name__} learns from experience of its own weights, which recorded data is not; use BC, "
            "SAC, TD3, DQN or R2D2"
        )
    tables, adder = ReplayTables(settings), agent.make_adder(dataset.spec)
    for block in dataset.blocks(BLOCK_STEPS):
        tables.insert(adder.add(block))
    return tables


def train_offline(
    agent: Agent,
    dataset: OfflineDataset,
    network: NetworkFactory | None = None,
    *,
    updates: int,
    seed: int = 0,
    device: str = "cpu",
    record_every: int = 100,
    on_update: Callable[[int, Update], None] | None = None,
) -> OfflineResult:
    """Train an agent on recorded data. Equal arguments give equal bits.

    Batches are drawn from the agent's replay table, with priorities if it has them.

    Args:
        agent: such as `rl.BC()`, `rl.SAC()`, `rl.TD3()`, `rl.DQN()` or `rl.R2D2()`. Agents that value actions tend to
            overrate those that the data does not have. Recorded data has no recurrent states: the sequences of R2D2
            begin with that of an episode's first step, which `burn_in` rows bring up to date.
        dataset: what is learned from.
        network: makes the networks, such as `rl.MLP((64, 64))`; None: the agent's own.
        updates: number of updates.
        seed: seed of weights, draws and noise.
        device: where to train.
        record_every: updates between entries of the timeline.
        on_update: called after each update, with its number from 1 and what it told.

    Raises:
        ValueError: an argument is out of its range, or the agent cannot be used with the data.
        NotFinite: the data, a loss or a gradient is NaN or infinite.
    """
    if updates < 1 or record_every < 1:
        raise ValueError(f"updates={updates} and record_every={record_every} must be at least 1")
    agent.check(dataset.spec)
    tables = offline_tables(agent, dataset, seed=derived_seed(seed, "replay"))
    learner = agent.make_learner(dataset.spec, network, seed=derived_seed(seed, "learner"), device=device)
    batch_size = agent.items_of_batch(1)
    timeline: list[Mapping[str, float]] = []
    with one_torch_thread():
        for number in range(1, updates + 1):
            batch = tables.sample(agent.table, batch_size)
            # That before the update, as in experiments: a learning rate that falls to 0 is not 0 in the last one.
            update = learner.update(batch, (number - 1) / updates)
            if update.priorities is not None:
                tables.update_priorities(agent.table, batch.info.keys, update.priorities)
            if number % record_every == 0:
                timeline.append({"updates": number, **update.metrics})
            if on_update is not None:
                on_update(number, update)
    return OfflineResult(agent, dataset.spec, network, learner, tuple(timeline))


__all__ = ["OfflineResult", "offline_tables", "train_offline"]
