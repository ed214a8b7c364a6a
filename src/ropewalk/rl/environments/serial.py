"""`SerialVectorEnvironment`: single environments of Gymnasium, stepped one after the other.

Every reset is seeded with what follows from the run's seed and from numbers alone:

    derived_seed(seed, "episode", group, env, episode)

so that any episode can be repeated from these numbers and its actions, in whatever process.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ropewalk.errors import EnvironmentFailed, EnvironmentLost
from ropewalk.rl.environments.action_history import ActionHistory
from ropewalk.rl.environments.environment import EnvironmentHistory, Steps, VectorEnvironment
from ropewalk.rl.environments.failures import EpisodeFailures, check_on_error
from ropewalk.rl.environments.gymnasium_env import GymnasiumEnv
from ropewalk.rl.environments.mistakes import advice, check_are_distinct, shown_by_reset, step_mistake
from ropewalk.rl.environments.observation_rows import ObservationRows
from ropewalk.rl.environments.spaces import action_encoder, spec_of_spaces
from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.seeds import derived_seed

logger = logging.getLogger(__name__)

EPISODES_OF_A_LIFE = 1_000_000_000
"""Episodes of life L of a group are numbered from L times this number, so that no life repeats another's episodes."""


class SerialVectorEnvironment(VectorEnvironment):
    """Steps environments of Gymnasium one after the other in this process, which for cheap ones is the fastest way.

    Continuous actions are clipped to their bounds before an environment gets them.

    Args:
        factory: makes one environment from a seed.
        num_envs: how many to make.
        seed: seed of the run.
        group: which group of the run's environments this is.
        life: how many actors have had this group before; their episodes are not repeated.
        on_error: what happens if an environment raises. "raise": the error is raised, with a note that tells the
            episode. "truncate": the episode is truncated with the last observation and no reward, the traceback is
            logged once for each place that raises, and the environment is made again.
        first: environment 0, if it was made already.
        keeps_history: whether the actions of current episodes are kept for `history`, which takes memory as long as an
            episode goes on.

    Raises:
        ValueError: a space has no counterpart in `EnvironmentSpec`, an argument is out of range, or the factory returns
            one environment several times.
    """

    def __init__(
        self,
        factory: Callable[[int], GymnasiumEnv],
        num_envs: int,
        seed: int,
        group: int = 0,
        *,
        life: int = 0,
        on_error: str = "raise",
        first: GymnasiumEnv | None = None,
        keeps_history: bool = True,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; a vector environment has at least 1")
        check_on_error(on_error)
        self._factory, self._seed, self._group, self._life = factory, seed, group, life
        self._truncates = on_error == "truncate"
        self._envs: list[GymnasiumEnv] = [first] if first else []
        try:
            while len(self._envs) < num_envs:
                self._envs.append(self._make(len(self._envs)))
            check_are_distinct(self._envs)
            self.spec = spec_of_spaces(self._envs[0].observation_space, self._envs[0].action_space)
        except BaseException:
            self.close()
            raise
        self.num_envs = num_envs
        self._encode = action_encoder(self._envs[0].action_space)
        self._rows = ObservationRows(self.spec, num_envs)
        self._actions = ActionHistory(num_envs, self.spec.action_array) if keeps_history else None
        self._num_steps = [0] * num_envs
        """Of the current episodes."""
        self._called: int | None = None
        """The environment that is stepped or reset now."""
        self._episodes = [life * EPISODES_OF_A_LIFE] * num_envs
        self._ended = [False] * num_envs
        self._failures = [EpisodeFailures() for _ in range(num_envs)]
        self._logged: set[tuple[str, str, int | None]] = set()
        self._observation = self._rows.empty()
        """The last observation, which a truncation because of an error repeats."""

    def reset(self) -> Observation:
        observation = self._rows.empty()
        for env, episode in enumerate(self._episodes):
            self._begin(env, episode, observation)
        self._called = None
        return self._noted(observation)

    def step(self, action: Array) -> Steps:
        num_envs = self.num_envs
        commands = self._encode(action)
        if self._actions is not None:
            self._actions.append(action)
        observation = self._rows.empty()
        reward = np.zeros(num_envs, np.float32)
        terminated, truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        mask = np.ones(num_envs, np.bool_)
        final: dict[int, Mapping[str, Any]] = {}
        for env in range(num_envs):
            if self._ended[env]:
                self._begin(env, self._episodes[env] + 1, observation)
                mask[env] = False
                continue
            reward[env], is_terminated, is_truncated, info = self._step_one(env, commands[env], observation)
            if is_terminated or is_truncated:
                terminated[env], truncated[env] = is_terminated, is_truncated
                final[env] = dict(info)  # some environments write to the same dictionary again
        self._called = None
        return Steps(self._noted(observation), reward, terminated, truncated, mask, final)

    def cut(self, env: int) -> bool:
        self._ended[env] = True
        return True

    def close(self) -> None:
        envs, self._envs = self._envs, []
        with contextlib.ExitStack() as closing:  # an error of one leaves none open
            for env in envs:
                closing.callback(env.close)

    def call_under_way(self) -> str:
        env = self._called
        if env is None:
            return ""
        steps = self._num_steps[env]
        return f"{f'step {steps}' if steps else 'reset'} of environment {env}, episode seed {self._episode_seed(env)}"

    def history(self) -> EnvironmentHistory:
        """See the base class.

        Raises:
            RuntimeError: it was made with keeps_history=False.
        """
        if self._actions is None:
            raise RuntimeError("these environments were made with keeps_history=False, so their actions are not known")
        actions = tuple(map(self._actions.of, range(self.num_envs)))
        return EnvironmentHistory(tuple(self._episodes), actions, tuple(self._ended))

    def resume(self, history: EnvironmentHistory) -> Observation:
        """See the base class.

        Raises:
            ValueError: the history is of another number of environments.
            EnvironmentFailed: an environment does not do the same again; it is not deterministic.
        """
        if len(history.episodes) != self.num_envs:
            raise ValueError(
                f"the history is of {len(history.episodes)} environments, and this vector environment has "
                f"{self.num_envs}; resume it with the number that it was recorded with"
            )
        observation, before = self._rows.empty(), self._rows.empty()
        for env, (episode, actions, ended) in enumerate(
            zip(history.episodes, history.actions, history.ended, strict=True)
        ):
            self._begin(env, episode, observation)
            self._observation = observation
            for step, command in enumerate(self._encode(actions)):
                ends = ended and step == len(actions) - 1
                may_be_cut = ends and self._truncates
                if may_be_cut:
                    self._rows.copy_row(observation, before, env)
                self._step_one(env, command, observation)
                if may_be_cut and not self._ended[env]:  # by an error then, which has not come again
                    self._ended[env] = True
                    self._rows.copy_row(before, observation, env)
                elif self._ended[env] != ends:
                    raise self._not_the_same(env, history, step + 1)
        self._called = None
        if self._actions is not None:
            self._actions.restore(history.actions)
        return self._noted(observation)

    def _make(self, env: int) -> GymnasiumEnv:
        return self._factory(environment_seed(self._seed, self._group, env, self._life))

    def _noted(self, observation: Observation) -> Observation:
        if self._truncates:
            self._observation = observation
        return observation

    def _episode_seed(self, env: int) -> int:
        return derived_seed(self._seed, "episode", self._group, env, self._episodes[env])

    def _begin(self, env: int, episode: int, observation: Observation) -> None:
        self._episodes[env], self._ended[env], self._num_steps[env] = episode, False, 0
        self._called = env
        if self._actions is not None:
            self._actions.begin(env)
        seed = self._episode_seed(env)
        while True:
            try:
                seen = shown_by_reset(self._envs[env].reset(seed=seed))
                self._rows.check(seen)
                self._rows.write(observation, env, seen)
            except Exception as error:
                self._failed(env, error, "its reset", "is begun again")
            else:
                return

    def _step_one(
        self, env: int, command: Any, observation: Observation
    ) -> tuple[float, bool, bool, Mapping[str, Any]]:
        self._num_steps[env] += 1
        self._called = env
        try:
            seen, given, terminated, truncated, info = self._envs[env].step(command)
            try:
                reward, is_terminated, is_truncated = float(given), bool(terminated), bool(truncated)
                if terminated is None or truncated is None:  # pyright: ignore[reportUnnecessaryComparison]
                    raise TypeError  # of a branch without a return: the episode would never end
            except (TypeError, ValueError):
                raise step_mistake(given, terminated, truncated, info) from None
            if (is_terminated or is_truncated) and not isinstance(info, Mapping):
                raise step_mistake(given, terminated, truncated, info)
            self._rows.write(observation, env, seen)
        except Exception as error:
            self._failed(env, error, f"its step {self._num_steps[env]}", "is truncated")
            self._rows.copy_row(self._observation, observation, env)
            self._ended[env] = True
            return 0.0, False, True, {}
        if is_terminated or is_truncated:
            self._ended[env] = True
            self._failures[env].clear()
        return reward, is_terminated, is_truncated, info

    def _failed(self, env: int, error: Exception, when: str, consequence: str) -> None:
        """Go on after an error, with a new environment, or raise."""
        seed = self._episode_seed(env)
        life, episode = divmod(self._episodes[env], EPISODES_OF_A_LIFE)
        of_life = f" of life {life}" if life else ""
        where = f"environment {env} of group {self._group}, in {when} of episode {episode}{of_life}, seeded with {seed}"
        if not self._truncates:
            error.add_note(where)
            if words := advice(error, __file__):
                error.add_note(words)
            raise error
        reason = self._failures[env].add(seed)
        if reason:
            raise EnvironmentFailed(
                f"{where}: {reason}. The last failure: {_shown(error)}. To see it alone, make the environment, "
                f"call reset(seed={seed}), and step it",
                **self._facts(env),
            ) from error
        kind = _kind(error)
        is_told = kind in self._logged or isinstance(error, EnvironmentLost)  # that one tells the stacks that matter
        logger.warning("%s; the episode %s: %s", where, consequence, _shown(error), exc_info=None if is_told else error)
        self._logged.add(kind)
        self._remake(env)

    def _remake(self, env: int) -> None:
        try:
            self._envs[env].close()
        except Exception:
            logger.debug("environment %d of group %d failed again in close", env, self._group, exc_info=True)
        self._envs[env] = self._make(env)

    def _not_the_same(self, env: int, history: EnvironmentHistory, step: int) -> EnvironmentFailed:
        episode, seed = history.episodes[env], self._episode_seed(env)
        now, before = ("ended", "did not") if self._ended[env] else ("went on", "ended there")
        return EnvironmentFailed(
            f"environment {env} of group {self._group} does not do the same again: with the seed {seed} and the same "
            f"actions, its episode {episode} {now} after step {step} of {len(history.actions[env])}, and {before} when "
            "it was recorded; an environment that is resumed must follow from its seed and its actions alone, and be "
            "the same as then, with the same seed of the experiment",
            **self._facts(env),
        )

    def _facts(self, env: int) -> dict[str, int]:
        return {"group": self._group, "env": env, "episode": self._episodes[env], "seed": self._episode_seed(env)}


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def environment_seed(seed: int, group: int, env: int, life: int = 0) -> int:
    """Return the seed that a factory gets; environments that are seeded by nothing else differ between lives too."""
    return derived_seed(seed, "environment", group, env, *([life] if life else []))


def _kind(error: Exception) -> tuple[str, str, int | None]:
    """Return the type of an error and the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, frames[-1].filename if frames else "", frames[-1].lineno if frames else None


__all__ = ["EPISODES_OF_A_LIFE", "SerialVectorEnvironment", "environment_seed"]
