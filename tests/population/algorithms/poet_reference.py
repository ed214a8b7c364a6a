"""POET as the paper writes it down, in one process: nested loops, each evaluation where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ropewalk.population.open_ended.environment_space import EnvironmentSpace
from ropewalk.population.open_ended.niche import ESConfig
from ropewalk.population.open_ended.reproduction import Reproduction
from ropewalk.population.optimizers import Adam
from ropewalk.population.weighted_sum import Draws

Fitness = Callable[[Any, Any], float]


class ReferencePOET:
    """For a deterministic fitness function and Adam; agents are rows of (number, environment, theta, ...) dicts."""

    def __init__(
        self,
        start: Any,
        space: EnvironmentSpace,
        fitness: Fitness,
        draws: Draws,
        learning: ESConfig,
        reproduction: Reproduction,
        transfer_every: int,
    ) -> None:
        self.space, self.fitness, self.draws = space, fitness, draws
        self.learning, self.reproduction, self.transfer_every = learning, reproduction, transfer_every
        self.num_draws = self.num_environments = self.num_evaluations = 0
        self.archive: list[Any] = []
        self.transfers: list[tuple[int, int, int, bool]] = []
        self.active: list[dict[str, Any]] = []
        self.add(space.initial(), np.array(start, np.float32), None)

    def add(self, environment: Any, theta: Any, score: float | None) -> None:
        niche = {"number": self.num_environments, "environment": environment}
        self.num_environments += 1
        self.move_in(niche, theta, score)
        self.active.append(niche)

    def move_in(self, niche: dict[str, Any], theta: Any, score: float | None) -> None:
        rate = self.learning.learning_rate
        niche.update(theta=theta, score=score, sigma=self.learning.sigma, adam=Adam(rate))

    def score(self, theta: Any, environment: Any) -> float:
        self.num_evaluations += 1
        return self.fitness(theta, environment)

    def gradient(self, theta: Any, environment: Any, sigma: float) -> Any:
        """1/n times the sum of centred ranks times noise, plus the decay of parameters."""
        fitnesses, noises = list[float](), list[Any]()
        for _ in range(self.learning.pairs):
            noise = self.draws[self.num_draws]
            self.num_draws += 1
            fitnesses.append(self.score(theta + np.float32(sigma) * noise, environment))
            fitnesses.append(self.score(theta - np.float32(sigma) * noise, environment))
            noises.append(noise)
        ranks = [
            sum(other < one for other in fitnesses) + (sum(other == one for other in fitnesses) - 1) / 2
            for one in fitnesses
        ]
        weights = [rank / (len(ranks) - 1) - 0.5 for rank in ranks]
        total = np.zeros_like(theta)
        for i, noise in enumerate(noises):
            total += np.float32(weights[2 * i] - weights[2 * i + 1]) * noise
        return total / np.float32(len(fitnesses)) - np.float32(self.learning.weight_decay) * theta

    def fine_tuned(self, niche: dict[str, Any], environment: Any) -> Any:
        gradient = self.gradient(niche["theta"], environment, niche["sigma"])
        return Adam(self.learning.learning_rate).step(niche["theta"], gradient)

    def candidates(self, agents: list[dict[str, Any]], environment: Any) -> list[tuple[float, int, bool, Any]]:
        """Algorithm 4: each agent as it is and after one step."""
        found: list[tuple[float, int, bool, Any]] = []
        for niche in agents:
            found.append((self.score(niche["theta"], environment), niche["number"], False, niche["theta"]))
            tuned = self.fine_tuned(niche, environment)
            found.append((self.score(tuned, environment), niche["number"], True, tuned))
        return found

    def iterate(self, generation: int) -> None:
        """Algorithm 2, one iteration."""
        if self.reproduction.is_due(generation):
            self.mutate_environments(generation)
        for niche in self.active:
            gradient = self.gradient(niche["theta"], niche["environment"], niche["sigma"])
            niche["score"] = self.score(niche["theta"], niche["environment"])
            niche["theta"] = niche["adam"].step(niche["theta"], gradient)
            learning, adam = self.learning, niche["adam"]
            niche["sigma"] = max(niche["sigma"] * learning.sigma_decay, learning.least_sigma)
            adam.learning_rate = max(adam.learning_rate * learning.learning_rate_decay, learning.least_learning_rate)
        if len(self.active) > 1 and generation % self.transfer_every == 0:
            moves = list[Any]()
            for niche in self.active:
                others = [other for other in self.active if other is not niche]
                own = self.score(niche["theta"], niche["environment"])
                moves.append((own, max(self.candidates(others, niche["environment"]), key=lambda found: found[0])))
            for niche, (own, (score, source, tuned, theta)) in zip(self.active, moves, strict=True):
                niche["score"] = own
                if score > own:
                    self.move_in(niche, theta, score)
                    self.transfers.append((generation, source, niche["number"], tuned))

    def mutate_environments(self, generation: int) -> None:
        """Algorithm 3."""
        rule, rng = self.reproduction, np.random.default_rng([self.draws.seed, generation])
        parents = [niche for niche in self.active if niche["score"] >= rule.at_score]
        children: list[tuple[float, Any]] = []
        for _ in range(rule.children if parents else 0):
            parent = parents[rng.integers(len(parents))]
            child = self.space.mutate(parent["environment"], rng)
            if rule.least_score <= self.score(parent["theta"], child) <= rule.most_score:
                known = self.archive + [niche["environment"] for niche in self.active]
                distances = sorted(np.linalg.norm(self.space.vector(child) - self.space.vector(one)) for one in known)
                children.append((float(np.mean(distances[: rule.neighbours])), child))
        admitted = 0
        for _, child in sorted(children, key=lambda found: -found[0]):
            score, _, _, theta = max(self.candidates(self.active, child), key=lambda found: found[0])
            if rule.least_score <= score <= rule.most_score:
                self.add(child, theta, score)
                admitted += 1
                if admitted == rule.admitted:
                    break
        while len(self.active) > rule.capacity:
            self.archive.append(self.active.pop(0)["environment"])
        self.archive = self.archive[max(0, len(self.archive) - rule.archive_capacity) :]
