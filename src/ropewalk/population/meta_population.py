"""A meta-population of centres: their states, the choice of the next one to step, and the evaluator in the workers."""

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
    """One centre of the meta-population."""

    parameters: Vector
    optimizer: Optimizer
    behaviour: Floats | None = None
    """Behaviour of the latest parameters that were evaluated."""
    is_known: bool = False
    """Whether `behaviour` belongs to the current parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "parameters": self.parameters,
            "optimizer": self.optimizer.state_dict(),
            "behaviour": self.behaviour,
            "is_known": self.is_known,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.parameters = start_parameters(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.behaviour = None if state["behaviour"] is None else np.array(state["behaviour"], np.float64)
        self.is_known = bool(state["is_known"])


def chosen(members: Sequence[PopulationCenter], archive: NoveltyArchive, chance: float) -> int:
    """Choose the member that takes the next step, with a probability proportional to the novelty of its behaviour.

    Args:
        members: the members of the meta-population.
        archive: the archive against which novelty is measured.
        chance: a uniform random number, from 0 to below 1.

    Returns:
        The index of the member.
    """
    behaviours = [member.behaviour for member in members if member.behaviour is not None]
    novelties = archive.novelty(np.array(behaviours)) if len(behaviours) == len(members) else np.zeros(len(members))
    if not novelties.any():
        novelties = np.ones(len(members))
    passed = np.cumsum(novelties) <= chance * novelties.sum()
    return min(int(np.count_nonzero(passed)), len(members) - 1)


@dataclass(frozen=True, slots=True)
class Generation:
    """The candidate numbers of a generation: evaluations of centres, then any number of perturbations."""

    first: int
    """The number of the first candidate, such that the first perturbation is even: mirrored pairs are 2k and 2k + 1."""
    member: int
    """Index of the member whose centre is perturbed."""
    centres: tuple[int, ...]
    """Members whose centre has no known behaviour yet."""
    episodes: int
    """Number of evaluations of each of these centres."""

    @property
    def first_perturbed(self) -> int:
        """The number of the first perturbation."""
        return self.first + len(self.centres) * self.episodes

    def centre(self, number: int) -> int | None:
        """Return the member whose centre this number evaluates; None for a perturbation."""
        return self.centres[(number - self.first) // self.episodes] if number < self.first_perturbed else None


class NoveltyEvaluator(Evaluator[int]):
    """Evaluates perturbations of one centre, and other centres unperturbed.

    Args:
        generation: the meaning of the candidate numbers.
        perturbed: the centre of the member, with the noise.
        centres: parameters of the other centres, by member.
    """

    def __init__(self, generation: Generation, perturbed: Perturbed, centres: dict[int, Vector]) -> None:
        self._generation, self._perturbed, self._centres = generation, perturbed, centres

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(self.parameters(candidate), trial))

    def parameters(self, candidate: int) -> Vector:
        """Return the parameters of a candidate number."""
        if candidate < self._generation.first:  # asked for before the run was resumed; it is skipped when it is told
            return self._perturbed.centre
        member = self._generation.centre(candidate)
        return self._perturbed.parameters(candidate) if member is None else self._centres[member]
