"""`VectorEnvironment`: several copies of an environment, stepped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, EnvironmentSpec, Observation

EnvironmentFactory: TypeAlias = Callable[[int], Any]
"""Makes one environment from a seed: a `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, or a `VectorEnvironment`."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What one step of all environments returned. All arrays have one entry per environment.

    Attributes:
        observation: what the step led to; owned by the caller, never written to again.
        reward: float32.
        terminated: bool; the episode ended in a state from which no reward follows.
        truncated: bool; the episode was cut, and would have gone on from `observation`.
        mask: bool; False where the step only began the next episode.
        final_info: the `info` of the steps that ended an episode, by index of the environment.
    """

    observation: Observation
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    final_info: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])


@dataclass(frozen=True, slots=True)
class EnvironmentHistory:
    """How to bring an environment to the state that it is in, from nothing: seeds and actions.

    Attributes:
        episodes: for each environment, the number of its current episode, from 0.
        actions: for each environment, the actions of that episode so far, shape (steps, ...).
        ended: for each environment, whether that episode has ended, so that the next step resets.
    """

    episodes: tuple[int, ...]
    actions: tuple[Array, ...]
    ended: tuple[bool, ...]


class VectorEnvironment(ABC):
    """Several copies of one environment, stepped together.

    There is one convention for the ends of episodes, Gymnasium's NEXT_STEP: the step that ends an episode returns the
    last observation of that episode; the next step ignores the action, resets, and returns the first observation of the
    next episode with reward 0 and `mask` False. So the last observation of every episode, which a truncated episode is
    bootstrapped from, stands in the sequence of observations itself:

        observation   x0   x1   x2 = last of its episode   y0        y1
        action           a0   a1                       (ignored)  b0
        mask             1    1                        0          1
        terminated       0    1 (or truncated)         0          0

    Attributes:
        spec: observations and actions of one of them.
        num_envs: how many there are.
    """

    spec: EnvironmentSpec
    num_envs: int

    def __repr__(self) -> str:
        return f"<{type(self).__name__} num_envs={self.num_envs}>"

    @abstractmethod
    def reset(self) -> Observation:
        """Begin the first episode of every environment; called once, before the first step."""

    @abstractmethod
    def step(self, action: Array) -> Steps:
        """Step every environment.

        Args:
            action: shape (num_envs, ...); the rows of environments that reset in this step are ignored.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the environments hold; may be called twice."""

    def cut(self, env: int) -> bool:
        """Let the next step begin another episode of one environment, whose episode has not ended.

        `history` knows nothing of it.

        Returns:
            Whether it will; False: this vector environment begins episodes by itself alone.
        """
        del env
        return False

    def call_under_way(self) -> str:
        """Return which call of an environment has not returned yet, in words that no other call has; "": none is known.

        Called by other threads.
        """
        return ""

    def history(self) -> EnvironmentHistory:
        """Return how to bring new environments to the state of these: what `resume` takes.

        Raises:
            NotImplementedError: this environment cannot be brought to a state by seeds and actions.
        """
        raise self._cannot_resume()

    def resume(self, history: EnvironmentHistory) -> Observation:
        """Bring a new environment, in place of `reset`, to the state that `history` tells, and return what it shows.

        Raises:
            NotImplementedError: this environment cannot be brought to a state by seeds and actions.
        """
        raise self._cannot_resume()

    def _cannot_resume(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} cannot be brought back to a state by seeds and actions, which lock-step "
            "needs after a death; make it of single environments, each seeded at every reset"
        )


__all__ = ["EnvironmentFactory", "EnvironmentHistory", "Steps", "VectorEnvironment"]
