"""How often the environments of an actor explore: the epsilon of each, from the experiment's progress.

`AnnealedEpsilon` is that of DQN (Mnih 2015): one epsilon for all, which falls while the experiment proceeds.
`EpsilonLadder` is that of Ape-X and R2D2 (Horgan 2018; Kapturowski 2019): one constant epsilon for each environment,
from nearly greedy to nearly half of the actions, over all environments of all groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.schedules import LinearSchedule


class Exploration(ABC):
    """Says with which probability each environment takes a random action."""

    @abstractmethod
    def epsilons(self, progress: float, num_envs: int) -> NDArray[np.float64]:
        """Return the probability for each environment of a group, shape (num_envs,).

        Args:
            progress: share of the experiment's steps that were done, 0 to 1.
            num_envs: N, environments of the group.
        """


@dataclass(frozen=True, slots=True)
class AnnealedEpsilon(Exploration):
    """The same epsilon for all environments, which follows a schedule.

    Args:
        schedule: epsilon by progress.
    """

    schedule: LinearSchedule = field(default_factory=lambda: LinearSchedule(1.0, 0.05, until=0.1))

    def epsilons(self, progress: float, num_envs: int) -> NDArray[np.float64]:
        """Return the schedule's value for each environment."""
        return np.full(num_envs, self.schedule.at(progress))


@dataclass(frozen=True, slots=True)
class EpsilonLadder(Exploration):
    """A constant epsilon for each environment: eps_i = base^(1 + exponent i / (M - 1)), i = 0 .. M-1.

    M is the number of environments in all groups, and environment e of group g is number g N + e of them. A single
    environment has epsilon `base`.

    Args:
        group: the number of this group, from 0.
        groups: how many there are.
        base: 0.4 in both papers.
        exponent: 7 in both papers.
    """

    group: int = 0
    groups: int = 1
    base: float = 0.4
    exponent: float = 7.0

    def __post_init__(self) -> None:
        """Refuse a group that does not exist."""
        if not 0 <= self.group < self.groups:
            raise ValueError(
                f"EpsilonLadder: group {self.group} of {self.groups}: the number must be from 0 to {self.groups - 1}"
            )

    def epsilons(self, progress: float, num_envs: int) -> NDArray[np.float64]:
        """Return the rungs of this group's environments, whatever the progress."""
        del progress
        rung = self.group * num_envs + np.arange(num_envs)
        last = max(self.groups * num_envs - 1, 1)
        return np.power(self.base, 1.0 + self.exponent * rung / last)


@dataclass(frozen=True, slots=True)
class JoinedExploration(Exploration):
    """The exploration of several groups whose environments are stepped as one.

    Args:
        parts: parts of each group, with the number of its environments.
    """

    parts: tuple[tuple[Exploration, int], ...]

    def epsilons(self, progress: float, num_envs: int) -> NDArray[np.float64]:
        """Return the epsilons of each group's environments, one group after the other."""
        del num_envs
        return np.concatenate([part.epsilons(progress, num) for part, num in self.parts])


__all__ = ["AnnealedEpsilon", "EpsilonLadder", "Exploration", "JoinedExploration"]
