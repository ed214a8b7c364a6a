"""Reads small data sets that Minari itself has written into a temporary folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from ropewalk.rl.environments.spec import ContinuousAction, DiscreteAction
from ropewalk.rl.offline.minari_dataset import load_minari

minari = pytest.importorskip("minari")
pytest.importorskip("h5py", reason="Minari stores data sets by h5py: pip install 'ropewalk[minari]'")


def written(name: str, observation: Any, action: Any, episodes: list[dict[str, Any]]) -> Any:
    """A data set that Minari has written."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = [EpisodeBuffer(id=number, infos={}, **episode) for number, episode in enumerate(episodes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of each description that a data set does not have
        return minari.create_dataset_from_buffers(name, buffers, observation_space=observation, action_space=action)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def flags(length: int, ended: bool) -> list[bool]:
    return [False] * (length - 1) + [ended]


def continuous_episodes() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "observations": rng.normal(size=(length + 1, 3)).astype(np.float32),
            "actions": rng.uniform(-2, 2, size=(length, 2)).astype(np.float32),
            "rewards": rng.normal(size=length).tolist(),
            "terminations": flags(length, terminated),
            "truncations": flags(length, not terminated),
        }
        for length, terminated in ((4, True), (1, False), (6, False))
    ]


def test_a_data_set_is_read_by_its_id() -> None:
    episodes = continuous_episodes()
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    written("test/continuous-v0", observation, spaces.Box(-2, 2, (2,), np.float32), episodes)
    dataset = load_minari("test/continuous-v0")
    assert dataset.spec.action == ContinuousAction((-2.0, -2.0), (2.0, 2.0))
    assert (dataset.num_episodes, dataset.num_steps) == (3, 11)
    columns = dataset.transitions(0.9)
    for name, key, rows in (
        ("observation", "observations", slice(0, -1)),
        ("next_observation", "observations", slice(1, None)),
        ("action", "actions", slice(None)),
        ("reward", "rewards", slice(None)),
    ):
        expected = np.concatenate([np.asarray(each[key], np.float32)[rows] for each in episodes])
        np.testing.assert_array_equal(columns[name], expected, name)
    assert columns["discount"] == pytest.approx([0.9, 0.9, 0.9, 0.0] + [0.9] * 7)


def test_choices_are_numbered_from_0_and_dictionaries_keep_their_names() -> None:
    episode = {
        "observations": {"place": np.arange(4), "speed": np.ones((4, 2), np.float32)},
        "actions": np.array([5, 6, 5]),
        "rewards": [0.0, 0.0, 1.0],
        "terminations": flags(3, True),
        "truncations": flags(3, False),
    }
    observation = spaces.Dict({"place": spaces.Discrete(9), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    made = written("test/choices-v0", observation, spaces.Discrete(2, start=5), [episode])
    dataset = load_minari(made)
    assert dataset.spec.action == DiscreteAction(2)
    columns = dataset.transitions(0.9)
    assert columns["action"].tolist() == [0, 1, 0]
    assert columns["next_observation.place"].tolist() == [1, 2, 3]
    assert columns["observation.speed"].shape == (3, 2)


def test_episodes_that_minari_filters_are_left_out() -> None:
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    made = written("test/filtered-v0", observation, spaces.Box(-2, 2, (2,), np.float32), continuous_episodes())
    dataset = load_minari(made.filter_episodes(lambda episode: len(episode.rewards) > 1))
    assert (dataset.num_episodes, dataset.num_steps) == (2, 10)


def test_a_data_set_that_is_missing_is_not_downloaded_unasked() -> None:
    with pytest.raises(FileNotFoundError, match="test/missing-v0"):
        load_minari("test/missing-v0")
