"""A genetic algorithm for large numbers of parameters: mutation by noise, truncation selection, elites.

Such, Madhavan, Conti, Lehman, Stanley, Clune: Deep Neuroevolution, 2017 (https://arxiv.org/abs/1712.06567), section 3
and algorithm 1. A genome is a chain of seeds (`seed_chains`), and a candidate is only a number:

    number ─┬─▶ which parent                              the parents are sent once per generation and host,
            └─▶ which noise       child = parent + sigma·noise      as one tree of chains

It departs from the paper in one place: there, the best of a generation are evaluated in further episodes before the
next generation begins. Here these run concurrently with the next generation, of which they are the parents, so that
workers do not wait for a few evaluations between two generations. The further episodes of an elite accumulate while it
remains an elite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.ga_candidates import ChainEvaluator, GACandidates, candidates_from, candidates_of
from ropewalk.population.identity import check_identity
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.outcome import Outcome
from ropewalk.population.perturbed import usual_table
from ropewalk.population.seed_chains import ROOT, SeedChain, SeedLineage, Start, Vector, made


@dataclass(slots=True)
class _ChampionRecord:
    """The further episodes of one champion."""

    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else -inf


class Genetic(Algorithm[int]):
    """Deep GA: truncation selection of seed chains, without crossover.

    Such et al., Deep Neuroevolution, 2017 (https://arxiv.org/abs/1712.06567), section 3.

    The fitness function is called with a float32 array of shape (parameters,).

    Args:
        initial: the vector that is mutated to the first generation: an array of shape (parameters,), which is sent with
            every generation; the number of parameters (zeros); or a picklable function that returns the array, which
            each process calls once.
        population: number of children in a generation. The further episodes of the best are additional evaluations.
        parents: number of individuals of a generation that have children in the next.
        sigma: standard deviation of the mutation of each parameter; the paper calls it mutation power.
        initial_sigma: standard deviation for the first generation; None for `sigma`.
        sigma_decay: factor of `sigma` after each generation.
        validated: number of the best that are evaluated in further episodes in the next generation, besides the elites.
        episodes: number of further episodes of each of them in a generation.
        elites: number of individuals that are kept unchanged and remain parents: those with the best means over all
            their further episodes. 0 for none; must be 0 with `validated=0`.
        noise: the noise table of the mutations.
        cache_bytes: limit for the cache of parents' parameters in each worker, in bytes.
        seed: seed of all random numbers.
    """

    def __init__(
        self,
        initial: Start,
        *,
        population: int = 256,
        parents: int = 20,
        sigma: float = 0.02,
        initial_sigma: float | None = None,
        sigma_decay: float = 1.0,
        validated: int = 5,
        episodes: int = 5,
        elites: int = 1,
        noise: NoiseTable | None = None,
        cache_bytes: int = 128 << 20,
        seed: int = 0,
    ) -> None:
        super().__init__(population, seed)
        if not 0 <= elites <= validated <= parents <= population or parents < 1:
            raise ValueError(
                "it must be that 0 <= elites <= validated <= parents <= population, and parents at least 1; "
                f"they are {elites}, {validated}, {parents}, {population}; a small population needs a smaller parents="
            )
        if sigma <= 0 or (initial_sigma is not None and initial_sigma <= 0):
            raise ValueError(f"sigma and initial_sigma must be more than 0, not {sigma} and {initial_sigma}")
        if not 0 < sigma_decay <= 1:
            raise ValueError(f"sigma_decay must be more than 0 and at most 1, not {sigma_decay}")
        if episodes < 1 or cache_bytes < 0:
            raise ValueError(f"episodes must be at least 1 and cache_bytes 0 or more, not {episodes} and {cache_bytes}")
        self._num_parents, self._validated, self._episodes, self._num_elites = parents, validated, episodes, elites
        self._sigma, self._sigma_decay = sigma, sigma_decay
        self._cache_bytes = cache_bytes
        start = made(initial)
        self._noise = noise or usual_table(start.size)
        self._noise.index(seed, 0, start.size)  # raises if the table is too small
        self._lineage = SeedLineage(initial, self._noise)
        self._elites: tuple[int, ...] = ()
        self._records: dict[int, _ChampionRecord] = {}
        self._children: list[tuple[int, float]] = []  # (number, fitness) of this generation, in the order of telling
        self._replays: list[tuple[int, float]] = []  # (number, fitness) of further episodes
        self._next = 0
        self._generations = [GACandidates(0, (ROOT,), (), episodes, initial_sigma or sigma, seed)]
        """The current generation, and older ones of which candidates are still under way; oldest first."""
        self._under_way = {0: 0}
        """Number of candidates of each generation under way (neither told nor dropped), by its first number."""
        self._evaluator: ChainEvaluator | None = None

    # Candidates

    def ask(self, n: int) -> range:
        """Return candidate numbers: those of a whole generation if `n >= population`, else `n` of them."""
        if n < 0:
            raise ValueError(f"n must be 0 or more candidates, not {n}")
        handed_out = self._next - self._newest.first
        size = self._newest.first_child - self._newest.first + self.population
        asks_for_generations = n >= self.population
        was_cut_short = asks_for_generations and handed_out >= size and self._children
        if len(self._children) >= self.population or was_cut_short:
            self._select()
            return self.ask(n)
        if asks_for_generations:
            n = size - handed_out if handed_out < size else self.population
        self._next += n
        self._under_way[self._newest.first] += n
        return range(self._next - n, self._next)

    def drop(self, candidates: Sequence[int]) -> None:
        for number in candidates:
            self._under_way[self._candidates_of(number).first] -= 1

    def evaluator(self) -> ChainEvaluator:
        """Return the evaluator of the current generation; after a resumption, it includes older unfinished ones."""
        if self._evaluator is None:
            chains, position_of = self._lineage.pack(_nodes_of(self._generations), self._cache_bytes)
            generations = [
                replace(
                    generation,
                    parents=tuple(position_of[node] for node in generation.parents),
                    champions=tuple(position_of[node] for node in generation.champions),
                )
                for generation in self._generations
            ]
            self._evaluator = ChainEvaluator(chains, generations)
        return self._evaluator

    @property
    def _newest(self) -> GACandidates:
        return self._generations[-1]

    def _candidates_of(self, number: int) -> GACandidates:
        if not self._generations[0].first <= number < self._next:
            raise ValueError(
                f"candidate {number} is not under way: those of the oldest unfinished generation begin with "
                f"{self._generations[0].first}, and {self._next} were asked for in all"
            )
        return candidates_of(number, self._generations)

    # Selection

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Record the fitnesses; when a generation is complete, select the next one."""
        for number, outcome in zip(candidates, outcomes, strict=True):
            generation = self._candidates_of(number)
            self._under_way[generation.first] -= 1
            if number >= generation.first_child:
                self._children.append((number, outcome.fitness))
            elif generation.champion(number) in self._records:
                self._replays.append((number, outcome.fitness))
        num_replays = sum(number >= self._newest.first for number, _ in self._replays)
        if len(self._children) >= self.population and num_replays >= self._newest.first_child - self._newest.first:
            self._select()

    def _select(self) -> None:
        """Truncation selection: the best children and the elites become the parents of the next generation."""
        for number, fitness in sorted(self._replays):  # sorted, so that sums do not depend on the order of arrival
            record = self._records[self._candidates_of(number).champion(number)]
            record.total += fitness
            record.count += 1
        played = [node for node, record in self._records.items() if record.count]
        self._elites = tuple(sorted(played, key=lambda node: (-self._records[node].mean, node))[: self._num_elites])

        best = sorted(self._children, key=lambda child: (-child[1], child[0]))[: self._num_parents]
        nodes = tuple(self._adopt(number) for number, _ in best)
        self._records = {node: self._records[node] for node in self._elites}
        champions = self._elites + nodes[: self._validated]
        self._records |= {node: _ChampionRecord() for node in nodes[: self._validated]}

        self._children, self._replays = [], []
        self.generation += 1
        sigma = self._sigma * self._sigma_decay**self.generation
        self._generations = [generation for generation in self._generations if self._under_way[generation.first] > 0]
        self._generations.append(
            GACandidates(self._next, self._elites + nodes, champions, self._episodes, sigma, self.seed)
        )
        self._under_way = {
            generation.first: self._under_way.get(generation.first, 0) for generation in self._generations
        }
        self._lineage.keep(_nodes_of(self._generations))
        self._evaluator = None

    def _adopt(self, number: int) -> int:
        """Add a child to the lineage; returns its node."""
        generation = self._candidates_of(number)
        parent, index = generation.child(number, self._noise, self._lineage.dim)
        return self._lineage.add(parent, index, generation.sigma)

    # Results

    @property
    def genome(self) -> SeedChain | None:
        """The chain of the best elite; without elites, of the best of the last generation; None before there is any."""
        node = (self._elites or self._newest.parents)[0]
        return None if node == ROOT else self._lineage.chain(node)

    def incumbent(self) -> Vector | None:
        """Return the parameters of `genome`."""
        node = (self._elites or self._newest.parents)[0]
        if node == ROOT:
            return None
        chains, positions = self._lineage.pack([node], self._cache_bytes)
        return chains.decode(positions[node])

    def figures(self) -> dict[str, float]:
        """Return the mutation's sigma, and the length, mean fitness and number of episodes of the best chain."""
        figures = {"sigma": self._newest.sigma}
        if self._elites:
            record = self._records[self._elites[0]]
            figures |= {"elite": record.mean, "elite_episodes": float(record.count)}
        return figures | {"links": float(self._lineage.depth((self._elites or self._newest.parents)[0]))}

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the state; it includes only ancestors of living genomes."""
        return {
            "identity": self._identity(),
            "generation": self.generation,
            "next": self._next,
            "broods": [
                asdict(generation) | {"under_way": self._under_way[generation.first]}
                for generation in self._generations
            ],
            "elites": list(self._elites),
            "records": _table([(node, record.total, record.count) for node, record in self._records.items()], 3),
            "children": _table(self._children, 2),
            "replays": _table(self._replays, 2),
            "lineage": self._lineage.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state["identity"], self._identity())
        self._lineage.load_state_dict(state["lineage"])
        self.generation: int = state["generation"]
        self._next = state["next"]
        self._under_way = {generation["first"]: generation["under_way"] for generation in state["broods"]}
        self._generations = [candidates_from(generation) for generation in state["broods"]]
        self._elites = tuple(state["elites"])
        self._records = {
            int(node): _ChampionRecord(total, int(count)) for node, total, count in state["records"].tolist()
        }
        self._children = [(int(number), fitness) for number, fitness in state["children"].tolist()]
        self._replays = [(int(number), fitness) for number, fitness in state["replays"].tolist()]
        self._evaluator = None

    def _identity(self) -> dict[str, Any]:
        """Return the facts that a state must match; `SeedLineage` compares the start and the noise."""
        return {
            "algorithm": "Genetic",
            "dim": self._lineage.dim,
            "population": self.population,
            "parents": self._num_parents,
            "validated": self._validated,
            "episodes": self._episodes,
            "elites": self._num_elites,
            "sigma": self._sigma,
            "sigma_decay": self._sigma_decay,
            "seed": self.seed,
        }


def _nodes_of(generations: Iterable[GACandidates]) -> list[int]:
    return [node for generation in generations for node in generation.parents + generation.champions if node != ROOT]


def _table(rows: Sequence[tuple[float, ...]], num_columns: int) -> NDArray[np.float64]:
    return np.array(rows, np.float64).reshape(-1, num_columns)
