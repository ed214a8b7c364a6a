"""`OfflineDataset`: recorded episodes, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array, ArraySpec, EnvironmentSpec, Observation, observation_columns
from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.seeds import generator


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """One episode of L steps.

    Attributes:
        observation: shape (L + 1, ...); the last row is what the last step led to.
        action: shape (L, ...).
        reward: shape (L,).
        terminated: whether the last step led to a state from which no reward follows; otherwise the episode was cut.
    """

    observation: Observation
    action: Array
    reward: Array
    terminated: bool


@dataclass(frozen=True, slots=True, eq=False)
class OfflineDataset:
    """Recorded episodes. Made by `from_episodes` or `from_transitions`.

    The episodes are laid out as the steps of one environment, with the convention for ends of episodes of
    `VectorEnvironment`: an episode of L steps has L + 1 rows, the last of which is masked. So a data set is a sequence
    of blocks, and what an agent's adder makes of blocks (n-step returns, sequences) it makes of a data set too.

        observation   x0   x1   x2   y0   y1
        action        a0   a1   -    b0   -
        mask          1    1    0    1    0
        terminated    0    1    0    0    0
        truncated     0    0    0    1    0

    Attributes:
        spec: observations and actions.
        columns: "observation" (or "observation.<name>" for each entry of a dictionary), "first", "action", "reward",
            "terminated", "truncated" and "mask", shape (rows, ...).
    """

    spec: EnvironmentSpec
    columns: Mapping[str, Array]

    @classmethod
    def from_episodes(cls, spec: EnvironmentSpec, episodes: Iterable[RecordedEpisode]) -> OfflineDataset:
        """Lay out episodes one after the other.

        Args:
            spec: observations and actions; arrays are converted to its dtypes.
            episodes: in order; an episode without steps is left out.

        Raises:
            ValueError: an array has another shape than the spec or the episode's other arrays, or there are no steps.
        """
        parts: dict[str, list[Array]] = {}
        for number, episode in enumerate(episodes):
            if len(episode.reward):
                for name, array in _episode_rows(spec, episode, number).items():
                    parts.setdefault(name, []).append(array)
        if not parts:
            raise ValueError("the data set has no steps; give at least one episode with one step")
        return cls(spec, {name: np.concatenate(arrays) for name, arrays in parts.items()})

    @classmethod
    def from_transitions(
        cls,
        spec: EnvironmentSpec,
        *,
        observation: Array,
        action: Array,
        reward: Array,
        next_observation: Array,
        terminated: Array,
        truncated: Array | None = None,
    ) -> OfflineDataset:
        """Join transitions in their order to episodes, as data sets in the manner of D4RL need it.

        An episode ends at a transition that is terminated or truncated, and wherever the next transition does not begin
        with the observation that this one led to; such an episode counts as truncated.

        Args:
            spec: observations (one array, no dictionary) and actions.
            observation: shape (S, ...).
            action: shape (S, ...).
            reward: shape (S,).
            next_observation: shape (S, ...).
            terminated: bool, shape (S,).
            truncated: bool, shape (S,); None: nowhere.

        Raises:
            ValueError: as for `from_episodes`.
        """
        same = np.all(next_observation[:-1] == observation[1:], axis=tuple(range(1, np.ndim(observation))))
        ends = np.asarray(terminated, dtype=bool) | (False if truncated is None else np.asarray(truncated, dtype=bool))
        ends[:-1] |= ~same
        ends[-1:] = True
        last = np.flatnonzero(ends)
        starts = np.concatenate([[0], last[:-1] + 1])[: len(last)]
        return cls.from_episodes(
            spec,
            (
                RecordedEpisode(
                    np.concatenate([observation[start : end + 1], next_observation[end : end + 1]]),
                    action[start : end + 1],
                    reward[start : end + 1],
                    bool(terminated[end]),
                )
                for start, end in zip(starts.tolist(), last.tolist(), strict=True)
            ),
        )

    @property
    def num_steps(self) -> int:
        """Number of steps in all episodes."""
        return int(np.count_nonzero(self.columns["mask"]))

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return int(np.count_nonzero(self.columns["first"]))

    def scores(self) -> NDArray[np.float64]:
        """Return the undiscounted sum of rewards of each episode."""
        starts = np.flatnonzero(self.columns["first"])
        return np.add.reduceat(self.columns["reward"].astype(np.float64), starts)

    def blocks(self, unroll: int) -> Iterator[Block]:
        """Return the data as blocks of `unroll` steps of one environment, as an actor would have sent them.

        Args:
            unroll: T, steps of a block; the last block may have fewer.
        """
        steps = len(self.columns["mask"]) - 1  # the masked step after the last episode leads nowhere
        for number, start in enumerate(range(0, steps, unroll)):
            end = min(start + unroll, steps)
            columns: dict[str, Array] = {}
            for name, array in self.columns.items():
                rows = end + 1 if name == "first" or name.startswith("observation") else end
                columns[name] = array[start:rows, np.newaxis]
            yield Block(columns, "offline#0", number, 0, int(np.count_nonzero(columns["mask"])))

    def transitions(self, discount: float) -> dict[str, Array]:
        """Return all transitions, in order.

        Args:
            discount: gamma.

        Returns:
            Columns as `NStepAdder` of n = 1 has them: "observation", "action", "reward", "discount" (gamma, or 0 where
            the step terminated) and "next_observation"; shape (num_steps, ...).
        """
        rows = np.flatnonzero(self.columns["mask"])
        observation = {name: array for name, array in self.columns.items() if name.startswith("observation")}
        return {
            **{name: array[rows] for name, array in observation.items()},
            "action": self.columns["action"][rows],
            "reward": self.columns["reward"][rows],
            "discount": np.where(self.columns["terminated"][rows], 0, discount).astype(np.float32),
            **{f"next_{name}": array[rows + 1] for name, array in observation.items()},
        }

    def batches(self, batch_size: int, *, discount: float, seed: int, epochs: int | None = 1) -> Iterator[Batch]:
        """Return shuffled batches of transitions: each transition once in an epoch, in an order that follows from seed.

        Args:
            batch_size: transitions of a batch; the last batch of an epoch may have fewer.
            discount: as in `transitions`.
            seed: seed of the order.
            epochs: how many times the data set is gone through; None: for ever.

        Raises:
            ValueError: batch_size is less than 1.
        """
        check_number("batch_size", batch_size, Integral, "a whole number", least=1, required=True)
        return self._batches(batch_size, discount, seed, epochs)

    def _batches(self, batch_size: int, discount: float, seed: int, epochs: int | None) -> Iterator[Batch]:
        columns = self.transitions(discount)
        size, epoch = self.num_steps, 0
        while epochs is None or epoch < epochs:
            order = generator(seed, "epoch", epoch).permutation(size)
            for start in range(0, size, batch_size):
                keys = order[start : start + batch_size]
                yield Batch({name: array[keys] for name, array in columns.items()}, _info(keys, size, epoch + 1))
            epoch += 1


def _info(keys: NDArray[np.int64], size: int, times_sampled: int) -> SampleInfo:
    """Return facts of transitions, whose keys are their numbers in the data set."""
    num = len(keys)
    return SampleInfo(
        keys=keys,
        probability=np.full(num, 1 / size),
        priority=np.ones(num),
        times_sampled=np.full(num, times_sampled, dtype=np.int64),
        version=np.zeros(num, dtype=np.int64),
        inserted=keys,
        table_size=size,
        run_ids=("offline#0",) * num,
    )


def _episode_rows(spec: EnvironmentSpec, episode: RecordedEpisode, number: int) -> dict[str, Array]:
    """Return the L + 1 rows of an episode of L steps."""
    length = len(episode.reward)
    given = observation_columns(episode.observation)
    if given.keys() != spec.observation_columns.keys():
        raise ValueError(
            f"episode {number} has the observation columns {sorted(given)}, but the spec has "
            f"{sorted(spec.observation_columns)}"
        )
    rows = {
        name: _checked(given[name], each, length + 1, f"{name} of episode {number}")
        for name, each in spec.observation_columns.items()
    }
    first, terminated, truncated, mask = np.zeros((4, length + 1), dtype=bool)
    first[0] = True
    mask[:length] = True
    (terminated if episode.terminated else truncated)[length - 1] = True
    action = _checked(episode.action, spec.action_array, length, f"action of episode {number}")
    reward = _checked(episode.reward, ArraySpec(()), length, f"reward of episode {number}")
    return {
        **rows,
        "first": first,
        "action": np.concatenate([action, np.zeros_like(action[:1])]),
        "reward": np.concatenate([reward, np.zeros_like(reward[:1])]),
        "terminated": terminated,
        "truncated": truncated,
        "mask": mask,
    }


def _checked(array: Array, spec: ArraySpec, length: int, what: str) -> Array:
    converted = np.asarray(array, dtype=spec.dtype)
    if converted.shape != (length, *spec.shape):
        raise ValueError(
            f"{what} has shape {converted.shape}, but should have {(length, *spec.shape)}: an episode of L steps has "
            "L actions, L rewards and L + 1 observations"
        )
    return converted


__all__ = ["OfflineDataset", "RecordedEpisode"]
