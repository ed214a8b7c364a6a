"""What the candidates of a genetic algorithm are, by their numbers, and how workers make parameters of them.

brood, sent once:   champions × episodes ▕ children, without end
numbers:            40 41 42 43 44 45    ▕ 46 47 48 …
                    the node it is         seed and number decide the parent and the noise
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
    """What the candidates of one generation are, by their numbers."""

    first: int
    """The number of its first candidate; first come the further episodes of the best, then children without end."""
    parents: tuple[int, ...]
    """Nodes, of which children are made."""
    champions: tuple[int, ...]
    """Nodes that play further episodes."""
    episodes: int
    """How many each of them plays."""
    sigma: float
    """What the noise of a child is multiplied with."""
    seed: int

    @property
    def first_child(self) -> int:
        """The number of the first child."""
        return self.first + len(self.champions) * self.episodes

    def champion(self, number: int) -> int:
        """The node that plays in this evaluation."""
        return self.champions[(number - self.first) // self.episodes]

    def child(self, number: int, noise: NoiseTable, dim: int) -> tuple[int, int]:
        """The parent and the noise index of a child."""
        parent = self.parents[derive(derive(self.seed, _PARENT), number) % len(self.parents)]
        return parent, noise.index(derive(self.seed, _NOISE), number, dim)


def brood_from(facts: dict[str, Any]) -> GACandidates:
    """A brood from what `dataclasses.asdict` made of one; other facts are left out."""
    known: dict[str, Any] = {field.name: facts[field.name] for field in fields(GACandidates)}
    known |= {"parents": tuple(facts["parents"]), "champions": tuple(facts["champions"])}
    return GACandidates(**known)


def brood_of(number: int, broods: Sequence[GACandidates]) -> GACandidates:
    """That of these, oldest first, to which a candidate belongs."""
    return broods[bisect_right(broods, number, key=lambda brood: brood.first) - 1]


class ChainEvaluator(Evaluator[int]):
    """Makes the parameters that belong to a number, and has them evaluated.

    Args:
        chains: all that the broods descend from.
        broods: those of which candidates may come, oldest first, with positions in `chains` as their nodes.
    """

    def __init__(self, chains: PackedChains, broods: Sequence[GACandidates]) -> None:
        self._chains, self._broods = chains, broods

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(self.parameters(candidate), trial))

    def parameters(self, candidate: int) -> Vector:
        """What a number stands for."""
        chains, brood = self._chains, brood_of(candidate, self._broods)
        if candidate < brood.first_child:
            return chains.decode(brood.champion(candidate))
        parent, index = brood.child(candidate, chains.noise, chains.dim)
        return mutated(chains.decode(parent), chains.noise, index, brood.sigma)
