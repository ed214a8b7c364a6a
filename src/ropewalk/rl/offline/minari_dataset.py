"""`load_minari`: data sets of Minari (https://minari.farama.org), which holds recorded episodes of Gymnasium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ropewalk.rl.environments.spaces import spec_of_spaces
from ropewalk.rl.environments.spec import Array, ContinuousAction, EnvironmentSpec, Observation
from ropewalk.rl.offline.dataset import OfflineDataset, RecordedEpisode

if TYPE_CHECKING:
    from minari import MinariDataset  # pyright: ignore[reportMissingTypeStubs]


def load_minari(dataset: str | MinariDataset, *, download: bool = False) -> OfflineDataset:
    """Read a Minari data set into memory.

    Args:
        dataset: its id, such as "D4RL/pen/expert-v2"; or a data set of Minari, such as one whose episodes are filtered.
        download: whether an id that is not on this machine is downloaded.

    Raises:
        ImportError: Minari, or what it needs for the data set's format, is not installed.
        FileNotFoundError: there is no such data set on this machine, and `download` is False.
        ValueError: a space has no counterpart in `EnvironmentSpec`, or the data set is empty.
    """
    found = _load(dataset, download) if isinstance(dataset, str) else dataset
    spec = spec_of_spaces(found.observation_space, found.action_space)
    # Choices are numbered from 0 in blocks, whatever a space's start is.
    start = getattr(found.action_space, "start", 0)
    return OfflineDataset.from_episodes(spec, _episodes(found, spec, start))


def _load(name: str, download: bool) -> MinariDataset:
    try:
        import minari  # it is optional, and only this function needs it
    except ImportError as error:
        raise ImportError(
            f"data sets of Minari need the package minari ({error}); install it: pip install 'ropewalk[minari]'"
        ) from error
    return minari.load_dataset(name, download)


def _episodes(dataset: MinariDataset, spec: EnvironmentSpec, start: Any) -> Iterator[RecordedEpisode]:
    for episode in dataset.iterate_episodes():
        length = len(episode.rewards)
        action = np.asarray(episode.actions)
        if not isinstance(spec.action, ContinuousAction):
            action = action - start
        yield RecordedEpisode(
            observation=_observation(episode.observations),
            action=action.reshape(length, *spec.action_array.shape),
            reward=episode.rewards,
            terminated=bool(length and episode.terminations[-1]),
        )


def _observation(observation: Any) -> Observation:
    """Return the observations of an episode, which Minari gives as one array, or as a dictionary of arrays."""
    if isinstance(observation, dict):
        return cast("dict[str, Array]", observation)
    return np.asarray(observation)


__all__ = ["load_minari"]
