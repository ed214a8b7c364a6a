from __future__ import annotations

import numpy as np
import pytest

from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.offline.dataset import OfflineDataset, RecordedEpisode
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.selectors import Fifo
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables

SPEC = EnvironmentSpec(ArraySpec((1,)), DiscreteAction(5))


def episode(start: float, length: int, *, terminated: bool) -> RecordedEpisode:
    """Observations count up from `start`, actions are 0, 1, 2, ..., and rewards ten times the observation."""
    observation = start + np.arange(length + 1, dtype=np.float64)[:, None]
    return RecordedEpisode(observation, np.arange(length) % 5, 10 * observation[:-1, 0], terminated)


def three_episodes() -> OfflineDataset:
    lengths = [(0.0, 3, True), (100.0, 1, False), (200.0, 4, False)]
    return OfflineDataset.from_episodes(SPEC, [episode(s, n, terminated=t) for s, n, t in lengths])


def test_transitions_lead_to_the_last_observation_of_an_episode_and_never_to_the_next_episode() -> None:
    columns = three_episodes().transitions(0.9)
    assert columns["observation"][:, 0].tolist() == [0, 1, 2, 100, 200, 201, 202, 203]
    assert columns["next_observation"][:, 0].tolist() == [1, 2, 3, 101, 201, 202, 203, 204]
    assert columns["action"].tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert columns["reward"].tolist() == [0, 10, 20, 1000, 2000, 2010, 2020, 2030]
    assert columns["discount"] == pytest.approx([0.9, 0.9, 0, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert {name: str(array.dtype) for name, array in columns.items()} == {
        "observation": "float32",
        "next_observation": "float32",
        "action": "int64",
        "reward": "float32",
        "discount": "float32",
    }


def test_counts_and_scores_are_those_of_the_episodes() -> None:
    dataset = three_episodes()
    assert (dataset.num_episodes, dataset.num_steps) == (3, 8)
    assert dataset.scores().tolist() == [30, 1000, 8060]


@pytest.mark.parametrize("unroll", [1, 2, 3, 7, 100])
def test_items_that_an_adder_makes_of_blocks_are_the_transitions(unroll: int) -> None:
    dataset, adder = three_episodes(), NStepAdder(1, 0.9)
    table = ReplayTable("replay", sampler=Fifo(), remover=Fifo(), max_size=100, limiter=MinSize(1), max_times_sampled=1)
    tables = ReplayTables([table])
    for block in dataset.blocks(unroll):
        assert block.num_steps <= unroll and block.num_envs == 1
        tables.insert(adder.add(block))
    batch = tables.sample("replay", 8)
    for name, array in dataset.transitions(0.9).items():
        np.testing.assert_array_equal(batch.columns[name], array)
    assert sum(block.steps for block in dataset.blocks(unroll)) == 8


def test_each_transition_is_in_one_batch_of_each_epoch() -> None:
    dataset = three_episodes()
    batches = list(dataset.batches(3, discount=0.9, seed=1, epochs=2))
    assert [len(batch) for batch in batches] == [3, 3, 2] * 2
    for epoch in (batches[:3], batches[3:]):
        rewards = np.concatenate([batch.columns["reward"] for batch in epoch])
        assert sorted(rewards.tolist()) == [0, 10, 20, 1000, 2000, 2010, 2020, 2030]
    orders = [np.concatenate([batch.info.keys for batch in epoch]).tolist() for epoch in (batches[:3], batches[3:])]
    assert orders[0] != orders[1]
    assert batches[0].info.table_size == 8 and batches[-1].info.times_sampled.tolist() == [2, 2]


def test_the_order_of_batches_follows_from_the_seed() -> None:
    def order(seed: int) -> list[int]:
        batches = three_episodes().batches(8, discount=0.9, seed=seed, epochs=3)
        return [key for batch in batches for key in batch.info.keys.tolist()]

    assert order(1) == order(1) != order(2)


def test_batches_without_a_number_of_epochs_go_on() -> None:
    batches = three_episodes().batches(8, discount=0.9, seed=1, epochs=None)
    assert [len(next(batches)) for _ in range(10)] == [8] * 10


def test_transitions_are_joined_to_the_episodes_that_they_came_from() -> None:
    dataset = three_episodes()
    columns = dataset.transitions(0.9)
    joined = OfflineDataset.from_transitions(
        SPEC,
        observation=columns["observation"],
        action=columns["action"],
        reward=columns["reward"],
        next_observation=columns["next_observation"],
        terminated=columns["discount"] == 0,
    )
    for name, array in dataset.columns.items():
        np.testing.assert_array_equal(joined.columns[name], array, name)


def test_a_truncation_that_is_given_ends_an_episode_although_observations_go_on() -> None:
    observation = np.arange(5.0)[:, None]
    joined = OfflineDataset.from_transitions(
        SPEC,
        observation=observation[:-1],
        action=np.zeros(4),
        reward=np.ones(4),
        next_observation=observation[1:],
        terminated=np.zeros(4, bool),
        truncated=np.array([False, True, False, False]),
    )
    assert joined.num_episodes == 2 and joined.scores().tolist() == [2, 2]


def test_a_single_transition_is_an_episode_and_none_is_refused() -> None:
    """Both ended with words of numpy about a reshape."""

    def joined(num: int) -> OfflineDataset:
        seen = np.zeros((num, 1))
        numbers = np.zeros(num)
        return OfflineDataset.from_transitions(
            SPEC, observation=seen, action=numbers, reward=numbers, next_observation=seen + 1, terminated=numbers > 0
        )

    assert (joined(1).num_steps, joined(1).num_episodes) == (1, 1)
    with pytest.raises(ValueError, match="the data set has no steps"):
        joined(0)


def test_observations_that_are_dictionaries_keep_their_names() -> None:
    spec = EnvironmentSpec({"a": ArraySpec(()), "b": ArraySpec((2,))}, DiscreteAction(2))
    recorded = RecordedEpisode({"a": np.arange(3), "b": np.zeros((3, 2))}, np.array([0, 1]), np.ones(2), True)
    columns = OfflineDataset.from_episodes(spec, [recorded]).transitions(0.9)
    assert columns["next_observation.a"].tolist() == [1, 2]
    assert columns["observation.b"].shape == (2, 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observation": np.zeros((3, 1))}, r"observation of episode 0 has shape \(3, 1\), but should have \(4, 1\)"),
        ({"action": np.zeros(4)}, r"action of episode 0 has shape \(4,\)"),
        ({"observation": {"a": np.zeros((4, 1))}}, r"the observation columns \['observation.a'\]"),
    ],
)
def test_arrays_of_the_wrong_shape_are_refused(changed: dict[str, np.ndarray], message: str) -> None:
    parts = {"observation": np.zeros((4, 1)), "action": np.zeros(3), "reward": np.zeros(3), "terminated": True}
    with pytest.raises(ValueError, match=message):
        OfflineDataset.from_episodes(SPEC, [RecordedEpisode(**(parts | changed))])  # pyright: ignore[reportArgumentType]


def test_data_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        OfflineDataset.from_episodes(SPEC, [episode(0.0, 0, terminated=False)])
