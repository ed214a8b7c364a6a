"""The candidates of a genetic algorithm as numbers, and the parameters that workers compute from them.

sent once:          champions × episodes ▕ children, without limit
numbers:            40 41 42 43 44 45    ▕ 46 47 48 …
                    an existing node       seed and number determine the parent and the noise
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.seed_chains import PackedChains, Vector, mutated
from ropewalk.population.trial import Trial

_PARENT, _NOISE = 1, 2  # two independent streams of a seed


@dataclass(frozen=True, slots=True)
class GACandidates:
    """The meaning of the candidate numbers of one generation."""

    first: int
    """The number of the first candidate; first come further episodes of the best nodes, then any number of children."""
    parents: tuple[int, ...]
    """The nodes from which children are made."""
    champions: tuple[int, ...]
    """The nodes that are evaluated in further episodes."""
    episodes: int
    """Number of further episodes of each champion."""
    sigma: float
    """Factor of the noise of a child."""
    seed: int

    @property
    def first_child(self) -> int:
        """The number of the first child."""
        return self.first + len(self.champions) * self.episodes

    def champion(self, number: int) -> int:
        """Return the node that this number evaluates."""
        return self.champions[(number - self.first) // self.episodes]

    def child(self, number: int, noise: NoiseTable, dim: int) -> tuple[int, int]:
        """Return the parent and the noise index of a child."""
        parent = self.parents[derive(derive(self.seed, _PARENT), number) % len(self.parents)]
        return parent, noise.index(derive(self.seed, _NOISE), number, dim)


def candidates_from(facts: dict[str, Any]) -> GACandidates:
    """Build a `GACandidates` from the dict of `dataclasses.asdict`; other keys are ignored."""
    known: dict[str, Any] = {field.name: facts[field.name] for field in fields(GACandidates)}
    known |= {"parents": tuple(facts["parents"]), "champions": tuple(facts["champions"])}
    return GACandidates(**known)


def candidates_of(number: int, generations: Sequence[GACandidates]) -> GACandidates:
    """Return the generation to which a candidate number belongs; `generations` are sorted oldest first."""
    return generations[bisect_right(generations, number, key=lambda generation: generation.first) - 1]


class ChainEvaluator(Evaluator[int]):
    """Computes the parameters of a candidate number, and evaluates them.

    Args:
        chains: the chains of all nodes of the generations.
        generations: those from which candidates may come, oldest first; their nodes are positions in `chains`.
    """

    def __init__(self, chains: PackedChains, generations: Sequence[GACandidates]) -> None:
        self._chains = chains
        self._broods = generations  # the name that it has in checkpoints

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(self.parameters(candidate), trial))

    def parameters(self, candidate: int) -> Vector:
        """Return the parameters of a candidate number."""
        chains, generation = self._chains, candidates_of(candidate, self._broods)
        if candidate < generation.first_child:
            return chains.decode(generation.champion(candidate))
        parent, index = generation.child(candidate, chains.noise, chains.dim)
        return mutated(chains.decode(parent), chains.noise, index, generation.sigma)
