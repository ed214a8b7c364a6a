"""`Policy`: chooses actions for the environments of an actor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, EnvironmentSpec, Observation
from ropewalk.rl.variables import Variables


@dataclass(frozen=True, slots=True)
class ActionChoice:
    """Actions for N environments.

    Attributes:
        action: shape (N, ...), as stored and learned from; `ropewalk.rl.environments` clips it to the bounds.
        extras: what the learner needs beside it, shape (N, ...) each, such as "log_prob".
        state: recurrent state after this step, shape (N, ...) each.
    """

    action: Array
    extras: Mapping[str, Array] = field(default_factory=dict[str, Array])
    state: Mapping[str, Array] = field(default_factory=dict[str, Array])


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """What `Policy.act` is to be called with, by whoever acts for a collector; see there.

    Attributes:
        policy: whose actions are wanted.
        observation: see `Policy.act`.
        first: see `Policy.act`.
        state: see `Policy.act`.
        rng: see `Policy.act`.
    """

    policy: Policy
    observation: Observation
    first: NDArray[np.bool_]
    state: Mapping[str, Array]
    rng: np.random.Generator

    def chosen(self) -> ActionChoice:
        """Return what the policy chooses."""
        return self.policy.act(self.observation, self.first, self.state, self.rng)


class Policy(ABC):
    """Chooses actions. It holds only weights: recurrent state and randomness come in as arguments.

    So its choice follows from its arguments alone, in whichever process it runs, and one policy serves any number of
    environments.

    Attributes:
        spec: observations and actions of the environment that it was made for, if that is known.
    """

    spec: EnvironmentSpec | None = None

    def initial_state(self, num_envs: int) -> dict[str, Array]:
        """Return the recurrent state at the first step of an episode, shape (num_envs, ...) each; {} without memory."""
        del num_envs
        return {}

    @abstractmethod
    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> ActionChoice:
        """Choose an action for each of N environments.

        Args:
            observation: shape (N, ...).
            first: shape (N,); where True, the recurrent state is reset before it is used.
            state: recurrent state, shape (N, ...) each.
            rng: the only source of randomness.
            greedy: act as an evaluator does, without exploration.
        """

    @abstractmethod
    def load(self, variables: Variables) -> None:
        """Act with these weights from now on."""

    @property
    def group_part(self) -> object:
        """What of this policy depends on its group of environments, such as an epsilon; None: nothing does."""
        return None

    def joined(self, parts: Sequence[tuple[object, int]]) -> Policy:
        """Return this policy, with its weights, for the rows of several groups at once.

        Args:
            parts: the `group_part` of each group's policy, and how many environments the group has.
        """
        del parts
        return self


__all__ = ["ActionChoice", "ActionRequest", "Policy"]
