"""Reproduction of environments in POET: which of them have children, and which children are admitted. Pure.

Wang, Lehman, Clune, Stanley: Paired Open-Ended Trailblazer (POET), 2019 (https://arxiv.org/abs/1901.01753), algorithm 3
and section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.population.open_ended.bouts import AgentEnvPair
from ropewalk.population.open_ended.environment_space import Environment, EnvironmentSpace


@dataclass(frozen=True, slots=True)
class Child:
    """A new environment that is not admitted yet."""

    environment: Environment
    parent: int
    """The number of its parent environment."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The rules of reproduction, with the values of the paper except for the number of children."""

    every: int = 150
    """Number of iterations between attempts."""
    at_score: float = 200.0
    """The minimum score of an agent whose environment may have children."""
    least_score: float = 50.0
    """The minimal criterion: a child is too hard below this score, first of its parent's agent and then of the best."""
    most_score: float = 300.0
    """Above this score a child is too easy."""
    children: int = 8
    """Number of children in each attempt."""
    admitted: int = 1
    """Maximum number of children that are admitted in each attempt."""
    capacity: int = 20
    """Maximum number of active environments; the oldest are archived to make room."""
    archive_capacity: int = 100
    """Maximum number of archived environments with their agents; novelty is measured against them as well."""
    neighbours: int = 5
    """Number of nearest environments over which novelty averages the distance."""

    def __post_init__(self) -> None:
        for name in ("every", "children", "admitted", "capacity", "neighbours"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.archive_capacity < 0:
            raise ValueError(f"archive_capacity must be 0 or more, not {self.archive_capacity}")
        if not self.least_score <= self.most_score:
            raise ValueError(f"least_score must be at most most_score, not {self.least_score} and {self.most_score}")

    def is_due(self, generation: int) -> bool:
        """Whether an iteration begins with an attempt."""
        return generation > 0 and generation % self.every == 0

    def may_reproduce(self, score: float | None) -> bool:
        """Whether the score of an agent is high enough for its environment to have children."""
        return score is not None and score >= self.at_score

    def meets_criterion(self, score: float | None) -> bool:
        """Whether an environment in which an agent has this score is neither too hard nor too easy."""
        return score is not None and self.least_score <= score <= self.most_score

    def mutations(
        self, space: EnvironmentSpace, pairs: Sequence[AgentEnvPair], rng: np.random.Generator
    ) -> list[Child]:
        """Return children of random parents, without duplicates of active environments or of each other."""
        parents = [pair for pair in pairs if self.may_reproduce(pair.score)]
        known = [space.vector(pair.environment) for pair in pairs]
        children: list[Child] = []
        for _ in range(self.children if parents else 0):
            parent = parents[rng.integers(len(parents))]
            environment = space.mutate(parent.environment, rng)
            vector = space.vector(environment)
            if not any(np.array_equal(vector, other) for other in known):
                known.append(vector)
                children.append(Child(environment, parent.number))
        return children

    def most_novel_first(
        self, space: EnvironmentSpace, children: Sequence[Child], others: Sequence[Environment]
    ) -> list[Child]:
        """Sort children by the mean distance to their nearest neighbours among the other environments, descending."""
        vectors = np.stack([space.vector(environment) for environment in others])

        def novelty(child: Child) -> float:
            distances = np.linalg.norm(vectors - space.vector(child.environment), axis=1)
            return float(np.sort(distances)[: self.neighbours].mean())

        return sorted(children, key=novelty, reverse=True)
