"""`Collector`: steps the environments of one group with a policy, and returns what happened in blocks.

What a block contains follows from the seed, the group, the life, the number of the block, the weights, and the state
in which the block before left environments and policy: nothing else. That state is `CollectorHistory`, from which
another process goes on bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.actors.block_arrays import BlockArrays
from ropewalk.rl.blocks import Block, EpisodeEnd
from ropewalk.rl.environments.environment import EnvironmentHistory, VectorEnvironment
from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.policies.policy import ActionChoice, ActionRequest, Policy
from ropewalk.rl.seeds import generator
from ropewalk.rl.variables import Variables

BLOCKS_OF_A_LIFE = 1_000_000_000
"""Generators of the blocks of life L are numbered from L times this number, so that no life repeats another's."""


@dataclass(frozen=True, slots=True)
class CollectorHistory:
    """Where a collector stands between two blocks, apart from its weights.

    Attributes:
        environment: how to bring the environments to their state.
        block: number of the next block.
        state: recurrent state of the policy, shape (N, ...) each.
        scores: for each environment, the sum of rewards of the episode that has not ended, float64.
    """

    environment: EnvironmentHistory
    block: int
    state: Mapping[str, Array]
    scores: NDArray[np.float64]


class Collector:
    """Collects experience in blocks. Not thread-safe.

    Args:
        policy: chooses the actions.
        environment: new environments, which the collector resets, and closes in `close`.
        seed: seed of the run.
        group: which group of the run's environments this is.
        life: how many collectors have had this group before and were not continued.
        history: where to go on; by default, at the beginning of the first episodes.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        policy: Policy,
        environment: VectorEnvironment,
        seed: int,
        group: int = 0,
        life: int = 0,
        *,
        history: CollectorHistory | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy, self._environment = policy, environment
        self._seed, self._life = seed, life
        self.group: int = group
        """Which group of the run's environments this is."""
        self._clock = clock
        self._history = history
        self._version = 0
        self._block = history.block if history else 0
        self._observation: Observation | None = None
        num_envs = environment.num_envs
        self._first = np.ones(num_envs, np.bool_)
        self._state: Mapping[str, Array] = history.state if history else policy.initial_state(num_envs)
        self._scores = history.scores.copy() if history else np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self.num_calls: int = 0
        """Steps that were asked of the environments so far; another thread may read it."""

    def __repr__(self) -> str:
        return f"<Collector of group {self.group}, {self._block} blocks>"

    def load(self, variables: Variables) -> None:
        """Act with these weights from the next block on."""
        self._policy.load(variables)
        self._version = variables.version

    def collect(self, num_steps: int) -> Block:
        """Take some steps in all environments, and return them.

        Args:
            num_steps: T, steps of each environment, those that only begin an episode included.

        Raises:
            ValueError: num_steps is less than 1, or the policy returned arrays of other shapes than it must.
        """
        clock, steps = self._clock, self.steps(num_steps)
        try:
            request = next(steps)
            while True:
                asked = clock()
                choice = request.chosen()
                request = steps.send((choice, clock() - asked))
        except StopIteration as end:
            return end.value

    def steps(self, num_steps: int) -> Generator[ActionRequest, tuple[ActionChoice, float], Block]:
        """Take some steps as `collect` does, and let the caller choose the actions, who may do so for several groups.

        Args:
            num_steps: see `collect`.

        Yields:
            What is asked of the policy; send what it chose, and the seconds that this took.

        Returns:
            The block. The seconds between a request and its choice are no part of its times, but for those that are
            sent.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps is {num_steps}; a block has at least 1 step")
        clock = self._clock
        began = clock()
        observation = self._begun() if self._observation is None else self._observation
        reset_s, policy_s, env_s, away_s = clock() - began, 0.0, 0.0, 0.0
        rng = generator(self._seed, "block", self.group, self._life * BLOCKS_OF_A_LIFE + self._block)
        arrays = BlockArrays(self._environment.spec, num_steps, self._environment.num_envs, self._state)
        arrays.write_observation(0, observation, self._first)
        final: dict[int, Mapping[int, Mapping[str, Any]]] = {}
        for step in range(num_steps):
            asked = clock()
            choice, seconds = yield ActionRequest(self._policy, observation, self._first, self._state, rng)
            chosen = clock()
            arrays.write_choice(step, choice)
            steps = self._environment.step(choice.action)
            self.num_calls += 1
            stepped = clock()
            policy_s += seconds
            away_s += chosen - asked
            env_s += stepped - chosen
            observation, self._state = steps.observation, choice.state
            self._first = ~steps.mask
            arrays.write_steps(step, steps)
            arrays.write_observation(step + 1, observation, self._first)
            if steps.final_info:
                final[step] = steps.final_info
        self._observation = observation
        episodes = self._ended(arrays, final)
        self._block += 1
        other_s = clock() - began - reset_s - away_s - env_s
        return Block(
            columns=arrays.columns(),
            run_id=f"{self.group}#{self._life}",
            number=self._block - 1,
            version=self._version,
            steps=int(arrays.mask.sum()),
            episodes=episodes,
            seconds={"env": env_s, "policy": policy_s, "reset": reset_s, "other": other_s},
        )

    def call_under_way(self) -> str:
        """Return which call of an environment has not returned yet, with its group; "": none. For other threads."""
        call, comma, seed = self._environment.call_under_way().partition(",")
        return call and f"{call} of group {self.group}{comma}{seed}"

    def history(self) -> CollectorHistory:
        """Return where the collector stands, for one that goes on in its place with new environments.

        Raises:
            NotImplementedError: the environments cannot be brought to a state by seeds and actions.
        """
        if self._history and self._observation is None:
            return self._history
        state, scores = self.carried()
        return CollectorHistory(self._environment.history(), self._block, state, scores)

    def carried(self) -> tuple[dict[str, Array], NDArray[np.float64]]:
        """Return what the next block goes on with besides the environments: recurrent state, and unfinished scores.

        With the blocks themselves, this is enough to follow a collector from outside (`histories.advanced`).
        """
        return {name: np.array(array) for name, array in self._state.items()}, self._scores.copy()

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self._environment.close()

    def _begun(self) -> Observation:
        """Bring the environments to where collecting begins, and return what they show."""
        history = self._history
        if history is None:
            return self._environment.reset()
        observation = self._environment.resume(history.environment)
        ended = np.array(history.environment.ended)
        lengths = np.array([len(actions) for actions in history.environment.actions])
        self._first = (lengths == 0) & ~ended
        self._lengths = np.where(ended, 0, lengths)
        return observation

    def _ended(
        self, arrays: BlockArrays, final: Mapping[int, Mapping[int, Mapping[str, Any]]]
    ) -> tuple[EpisodeEnd, ...]:
        """Return the episodes that ended in a block, and remember the beginnings of those that did not.

        Done once a block, because sums in each step took a tenth of the time of eight CartPoles.
        """
        episodes: list[EpisodeEnd] = []
        num_steps, num_envs = arrays.mask.shape
        begun = [0] * num_envs
        """For each environment, the step of this block from which on the current episode counts."""
        for step, env in np.argwhere(arrays.terminated | arrays.truncated).tolist():
            self._add(arrays, env, begun[env], step + 1)
            info = _numbers_of(final.get(step, {}).get(env, {}))
            terminated = bool(arrays.terminated[step, env])
            episodes.append(EpisodeEnd(env, float(self._scores[env]), int(self._lengths[env]), terminated, info))
            self._scores[env] = self._lengths[env] = 0
            begun[env] = step + 1
        for env in range(num_envs):
            self._add(arrays, env, begun[env], num_steps)
        return tuple(episodes)

    def _add(self, arrays: BlockArrays, env: int, start: int, stop: int) -> None:
        self._scores[env] += arrays.reward[start:stop, env].sum(dtype=np.float64)
        self._lengths[env] += np.count_nonzero(arrays.mask[start:stop, env])


def calls_under_way(collectors: Mapping[int, Collector]) -> dict[int, str]:
    """Return, by group, which call of an environment has not returned; another thread may change the mapping."""
    return {group: collector.call_under_way() for group, collector in list(collectors.items())}


def _numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries that are one number."""
    return {name: float(value) for name, value in info.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float):
        return True
    return getattr(value, "shape", None) == () and getattr(value.dtype, "kind", "") in "biuf"


__all__ = ["BLOCKS_OF_A_LIFE", "Collector", "CollectorHistory", "calls_under_way"]
