"""Several centres that evolve side by side: what each is, which takes the next step, and what its workers evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.archives.novelty_archive import Floats, NoveltyArchive
from ropewalk.population.optimizers import Optimizer
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.perturbed import Perturbed, start_parameters
from ropewalk.population.trial import Trial
from ropewalk.population.weighted_sum import Vector


@dataclass(slots=True)
class PopulationCenter:
    """One of the centres."""

    parameters: Vector
    optimizer: Optimizer
    behaviour: Floats | None = None
    """Of its last centre that was evaluated."""
    is_known: bool = False
    """Whether that is the present one."""

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "parameters": self.parameters,
            "optimizer": self.optimizer.state_dict(),
            "behaviour": self.behaviour,
            "is_known": self.is_known,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what `state_dict` was taken from."""
        self.parameters = start_parameters(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.behaviour = None if state["behaviour"] is None else np.array(state["behaviour"], np.float64)
        self.is_known = bool(state["is_known"])


def chosen(members: Sequence[PopulationCenter], archive: NoveltyArchive, chance: float) -> int:
    """Which member takes the next step: with a probability in proportion to the novelty of its behaviour.

    Args:
        members: of the meta-population.
        archive: what novelty is measured against.
        chance: uniform, from 0 to below 1.
    """
    behaviours = [member.behaviour for member in members if member.behaviour is not None]
    novelties = archive.novelty(np.array(behaviours)) if len(behaviours) == len(members) else np.zeros(len(members))
    if not novelties.any():
        novelties = np.ones(len(members))
    passed = np.cumsum(novelties) <= chance * novelties.sum()
    return min(int(np.count_nonzero(passed)), len(members) - 1)


@dataclass(frozen=True, slots=True)
class Generation:
    """What the numbers of one generation are: evaluations of centres, and then perturbations without end."""

    first: int
    """Chosen so that the first perturbation is an even number: mirrored pairs are 2k and 2k + 1."""
    member: int
    """Whose centre is perturbed."""
    centres: tuple[int, ...]
    """Members whose centre has no behaviour yet."""
    episodes: int
    """Evaluations of each of these."""

    @property
    def first_perturbed(self) -> int:
        """The number of the first perturbation."""
        return self.first + len(self.centres) * self.episodes

    def centre(self, number: int) -> int | None:
        """The member whose centre this number evaluates; None for a perturbation."""
        return self.centres[(number - self.first) // self.episodes] if number < self.first_perturbed else None


class NoveltyEvaluator(Evaluator[int]):
    """Evaluates perturbations of one centre, and other centres as they are.

    Args:
        generation: what the numbers are.
        perturbed: the centre of its member, with the noise.
        centres: by member, parameters of the others.
    """

    def __init__(self, generation: Generation, perturbed: Perturbed, centres: dict[int, Vector]) -> None:
        self._generation, self._perturbed, self._centres = generation, perturbed, centres

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(self.parameters(candidate), trial))

    def parameters(self, candidate: int) -> Vector:
        """What a number stands for."""
        if candidate < self._generation.first:  # asked for before a resumption, and skipped when it is told
            return self._perturbed.centre
        member = self._generation.centre(candidate)
        return self._perturbed.parameters(candidate) if member is None else self._centres[member]
