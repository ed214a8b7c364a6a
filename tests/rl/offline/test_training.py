from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ropewalk.errors import NotFinite
from ropewalk.rl.agents.agent import Agent
from ropewalk.rl.agents.bc import BC
from ropewalk.rl.agents.dqn import DQN
from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.agents.r2d2 import R2D2
from ropewalk.rl.agents.sac import SAC
from ropewalk.rl.agents.td3 import TD3
from ropewalk.rl.environments.spec import Array, ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.learners.targets import TargetCopy
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.offline.dataset import OfflineDataset, RecordedEpisode
from ropewalk.rl.offline.training import offline_tables, train_offline
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.selectors import Prioritized
from ropewalk.rl.replay.table import ReplayTable

CONTINUOUS = EnvironmentSpec(ArraySpec((2,)), ContinuousAction((-2.0,), (4.0,)))
DISCRETE = EnvironmentSpec(ArraySpec((2,)), DiscreteAction(3))
NETWORK = MLP((32,), activation="relu")
FAST = TorchAdam(1e-2)


def best_continuous(observation: np.ndarray) -> np.ndarray:
    return (1 + 1.5 * np.tanh(observation[:, :1] - observation[:, 1:])).astype(np.float32)


def bandit(spec: EnvironmentSpec = CONTINUOUS, steps: int = 600, seed: int = 0) -> OfflineDataset:
    """Episodes of one step, with random actions; the reward is the larger, the nearer the action is to the best one."""
    rng = np.random.default_rng(seed)
    observation, after = (rng.normal(size=(steps, 2)).astype(np.float32) for _ in range(2))
    action: Any
    if isinstance(spec.action, DiscreteAction):
        action = rng.integers(3, size=steps)
        reward = (action == best_choice(observation)).astype(np.float32)
    else:
        action = rng.uniform(-2, 4, (steps, 1)).astype(np.float32)
        reward = 1 - np.abs(action - best_continuous(observation))[:, 0]
    return OfflineDataset.from_transitions(
        spec,
        observation=observation,
        action=action,
        reward=reward,
        next_observation=after,
        terminated=np.ones(steps, bool),
    )


def best_choice(observation: np.ndarray) -> np.ndarray:
    return (observation[:, 0] > 0).astype(np.int64) + (observation[:, 1] > 0)


def demonstrations(spec: EnvironmentSpec) -> OfflineDataset:
    data = bandit(spec)
    observation = data.transitions(1.0)["observation"]
    best: Any = best_choice if isinstance(spec.action, DiscreteAction) else best_continuous
    columns: dict[str, Any] = dict(data.columns)
    columns["action"] = np.array(columns["action"])
    columns["action"][columns["mask"]] = best(observation)
    return OfflineDataset(spec, columns)


def greedy(policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    observation = np.random.default_rng(99).normal(size=(300, 2)).astype(np.float32)
    choice = policy.act(observation, np.ones(300, bool), {}, np.random.default_rng(0), greedy=True)
    return observation, choice.action


@pytest.mark.parametrize("agent", [SAC(optimizer=FAST, batch_size=64), TD3(optimizer=FAST, batch_size=64)])
def test_agents_of_continuous_actions_find_the_best_action_in_random_data(agent: Agent) -> None:
    result = train_offline(agent, bandit(), NETWORK, updates=300, seed=1)
    observation, action = greedy(result.policy())
    assert np.abs(action - best_continuous(observation)).mean() < 0.35  # a random action is 1.9 away


def test_td3_with_cloning_stays_near_actions_of_the_data_where_their_reward_is_low() -> None:
    data = demonstrations(CONTINUOUS)
    columns: dict[str, Any] = dict(data.columns)
    columns["reward"] = np.where(columns["mask"], -columns["action"][:, 0], 0).astype(np.float32)  # lower were better
    data = OfflineDataset(CONTINUOUS, columns)

    def distance(alpha: float | None) -> float:
        agent = TD3(optimizer=FAST, batch_size=64, cloning_alpha=alpha)
        observation, action = greedy(train_offline(agent, data, NETWORK, updates=300, seed=1).policy())
        return float(np.abs(action - best_continuous(observation)).mean())

    assert distance(0.02) < 0.3 < 1.0 < distance(None)


def test_dqn_finds_the_best_choice_in_random_data() -> None:
    result = train_offline(DQN(optimizer=FAST, learning_starts=1), bandit(DISCRETE), NETWORK, updates=300, seed=1)
    observation, action = greedy(result.policy())
    assert (action == best_choice(observation)).mean() > 0.9


def remembering(steps: int = 3_000) -> OfflineDataset:
    """Episodes of two steps with random actions; the reward is 1 if the second action is what the first step showed."""
    rng = np.random.default_rng(0)
    shown, action = rng.integers(3, size=steps), rng.integers(3, size=(steps, 2))
    episodes = (
        RecordedEpisode(
            np.array([[seen, 1], [0, 0], [0, 0]], np.float32), actions, np.array([0, seen == actions[1]]), True
        )
        for seen, actions in zip(shown.tolist(), action, strict=True)
    )
    return OfflineDataset.from_episodes(DISCRETE, episodes)


def test_r2d2_learns_to_remember_from_data_without_recurrent_states() -> None:
    """Its sequences lacked the columns of the LSTM's state, and the first update raised KeyError: 'hidden'."""
    agent = R2D2(
        unroll=4, burn_in=4, trace=8, period=4, n_step=1, batch_size=32, learning_starts=1, hidden=0,
        optimizer=FAST, target=TargetCopy(20), rescaling=None,
    )  # fmt: skip
    policy = train_offline(agent, remembering(), LSTM(MLP((16,)), 16), updates=150, seed=1).policy()
    shown, nothing = np.array([[0, 1], [1, 1], [2, 1]], np.float32), np.zeros((3, 2), np.float32)
    rng = np.random.default_rng(0)
    saw = policy.act(shown, np.ones(3, bool), policy.initial_state(3), rng, greedy=True)
    assert policy.act(nothing, np.zeros(3, bool), saw.state, rng, greedy=True).action.tolist() == [0, 1, 2]


def test_cloning_gives_the_recorded_continuous_action() -> None:
    result = train_offline(BC(optimizer=FAST, batch_size=64), demonstrations(CONTINUOUS), NETWORK, updates=400, seed=1)
    observation, action = greedy(result.policy())
    assert np.abs(action - best_continuous(observation)).mean() < 0.1
    assert [row["updates"] for row in result.timeline] == [100, 200, 300, 400]
    assert result.timeline[-1]["loss"] < result.timeline[0]["loss"]


def test_cloning_gives_the_recorded_choice() -> None:
    result = train_offline(BC(optimizer=FAST, batch_size=64), demonstrations(DISCRETE), NETWORK, updates=300, seed=1)
    observation, action = greedy(result.policy())
    assert (action == best_choice(observation)).mean() > 0.9
    drawn = result.policy().act(observation, np.ones(300, bool), {}, np.random.default_rng(0))
    assert (drawn.action != action).any() and drawn.extras["log_prob"].shape == (300,)


@pytest.mark.parametrize(
    ("agent", "spec"),
    [(BC(), CONTINUOUS), (BC(), DISCRETE), (SAC(), CONTINUOUS), (TD3(n_step=3), CONTINUOUS), (DQN(), DISCRETE)],
    ids=["BC", "BC of choices", "SAC", "TD3", "DQN"],
)
def test_equal_seeds_give_equal_bits_and_others_do_not(agent: Agent, spec: EnvironmentSpec) -> None:
    def weights(seed: int) -> dict[str, bytes]:
        arrays = train_offline(agent, bandit(spec), NETWORK, updates=5, seed=seed).variables.arrays
        return {name: array.tobytes() for name, array in arrays.items()}

    assert weights(3) == weights(3) != weights(4)


def test_a_table_holds_all_of_the_data_however_small_the_agent_would_make_it() -> None:
    tables = offline_tables(SAC(replay_size=100, learning_starts=100), bandit(steps=3_000), seed=0)
    assert tables.info()["replay"].size == 3_000


class DrawRecorder(Learner):
    """Learns nothing, notes which items it is given, and wants to see item 7 again."""

    def __init__(self) -> None:
        self.items: list[list[int]] = []

    def update(self, batch: Batch, progress: float) -> Update:
        self.items.append(batch.info.inserted.tolist())
        return Update({"progress": progress}, np.where(batch.info.inserted == 7, 1e9, 1e-9))

    def variables(self) -> dict[str, Array]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


@dataclass(frozen=True, kw_only=True)
class RecordingAgent(BC):
    """BC with a learner that notes what is drawn."""

    prioritized: bool = False

    def make_learner(self, *arguments: Any, **settings: Any) -> Any:
        del arguments, settings
        return DrawRecorder()

    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        (table,) = super().make_tables(spec, groups=groups, seed=seed)
        return [replace(table, sampler=Prioritized(1.0))] if self.prioritized else [table]


def drawn(agent: RecordingAgent, seed: int) -> list[list[int]]:
    learner = train_offline(agent, bandit(steps=20), updates=30, seed=seed).learner
    assert isinstance(learner, DrawRecorder)
    return learner.items


def test_draws_follow_from_the_seed() -> None:
    agent = RecordingAgent(batch_size=8)
    assert drawn(agent, 1) == drawn(agent, 1) != drawn(agent, 2)
    assert len({item for items in drawn(agent, 1) for item in items}) == 20


def test_priorities_that_the_learner_tells_decide_what_is_drawn() -> None:
    items = drawn(RecordingAgent(batch_size=8, prioritized=True), 1)
    assert items[-1] == [7] * 8 and items[0] != [7] * 8


def test_a_single_update_learns_though_the_learning_rate_falls_to_zero() -> None:
    agent, dataset = DQN(anneal_learning_rate=True), bandit(DISCRETE)
    learned = train_offline(agent, dataset, NETWORK, updates=1).variables.arrays
    settings = replace(agent, optimizer=TorchAdam(0.0))
    before = train_offline(settings, dataset, NETWORK, updates=1).variables.arrays
    assert any((learned[name] != before[name]).any() for name in before)


def test_progress_and_numbers_of_updates_count_up() -> None:
    seen: list[tuple[int, float]] = []
    train_offline(
        RecordingAgent(),
        bandit(steps=20),
        updates=4,
        on_update=lambda number, update: seen.append((number, update.metrics["progress"])),
    )
    assert seen == [(1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75)], "as an experiment, it has the progress before the update"


def test_agents_that_learn_from_their_own_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="PPO learns from experience of its own weights"):
        train_offline(PPO(), bandit(DISCRETE), NETWORK, updates=1)


def test_agents_that_do_not_fit_the_data_are_refused() -> None:
    with pytest.raises(ValueError, match="SAC chooses continuous actions"):
        train_offline(SAC(), bandit(DISCRETE), NETWORK, updates=1)


def test_data_with_nan_is_refused() -> None:
    data = bandit()
    data.columns["reward"][4] = np.nan  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFinite, match="reward"):
        train_offline(SAC(), data, NETWORK, updates=1)
