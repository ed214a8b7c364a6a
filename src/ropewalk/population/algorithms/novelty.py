"""Evolution strategies that seek novelty: NS-ES, NSR-ES and NSRA-ES.

Conti, Madhavan, Petroski Such, Lehman, Stanley, Clune: Improving Exploration in Evolution Strategies for Deep
Reinforcement Learning via a Population of Novelty-Seeking Agents, 2018 (https://arxiv.org/abs/1712.06560), algorithms 1
to 3. Several members evolve towards behaviours that none of them has shown before:

    archive ─▶ novelty of members ─▶ one of them, by chance ─▶ centre ± sigma · draw ─▶ behaviour, fitness
       ▲                                                                                   │
       └── behaviour of the new centre ◀── Adam ◀── Σ (share · rank of fitness + (1 - share) · rank of novelty) · draw

NS-ES has a share of 0, NSR-ES of 0.5, and NSRA-ES one that falls while the fitness does not grow. It departs from the
paper in one place: a new centre is evaluated beside the next generation, so that workers need not wait for one
evaluation between two generations. Its behaviour is in the archive when the novelty of that generation is computed, as
in the paper; the choice of the member for that generation still sees its behaviour of before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm
from ropewalk.population.archives.novelty_archive import Floats, NoveltyArchive
from ropewalk.population.identity import check_identity
from ropewalk.population.meta_population import Generation, NoveltyEvaluator, PopulationCenter, chosen
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.optimizers import make_optimizer
from ropewalk.population.outcome import Outcome
from ropewalk.population.perturbed import Perturbed, start_parameters, usual_table, weights_of_draws
from ropewalk.population.ranks import centred_ranks
from ropewalk.population.weighted_sum import Draws, Vector, weighted_sum

_START, _CHOICE = 1, 2  # independent streams of the seed
#: By method: the share of fitness at the beginning, and whether it adapts.
_METHODS = {"ns": (0.0, False), "nsr": (0.5, False), "nsra": (1.0, True)}


class NoveltyES(Algorithm[int]):
    """Novelty-seeking evolution strategies. Fitness functions return `Outcome(fitness, behaviour=...)`.

    It is made for generations: in steady state, and of stragglers, what was asked for before the last step is skipped.

    Args:
        initial: parameters to start from, or how many: then zeros.
        population: perturbations of a generation, an even number; evaluations of centres come on top.
        method: "ns" for novelty alone; "nsr" for novelty and fitness in equal shares; "nsra" for a share of fitness
            that begins with 1, falls by `share_step` after `patience` generations without a better fitness of a centre,
            and grows by as much with each that is better.
        members: of the meta-population; one of them takes a step in each generation.
        spread: deviation of the members' starts from `initial`.
        sigma: deviation of the noise.
        learning_rate: of the optimizer.
        optimizer: "adam", "momentum" (SGD with 0.9) or "sgd".
        weight_decay: so many times the parameters are subtracted from the gradient.
        k: nearest neighbours that novelty is the distance to.
        capacity: of the archive; None for all behaviours.
        episodes: evaluations of a new centre; its behaviour and fitness are their means.
        share_step: see `method`.
        patience: see `method`.
        noise: the table; by default one that suits the number of parameters.
        seed: decides the noise and the choices.
    """

    def __init__(
        self,
        initial: Any,
        *,
        population: int = 256,
        method: str = "nsr",
        members: int = 3,
        spread: float = 0.0,
        sigma: float = 0.02,
        learning_rate: float = 0.01,
        optimizer: str = "adam",
        weight_decay: float = 0.0,
        k: int = 10,
        capacity: int | None = None,
        episodes: int = 2,
        share_step: float = 0.05,
        patience: int = 50,
        noise: NoiseTable | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(population, seed)
        if population % 2:
            raise ValueError(f"population must be even, as noise is mirrored, not {population}")
        if method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}, not {method!r}")
        if members < 1 or episodes < 1 or patience < 1:
            raise ValueError(
                f"members, episodes and patience must be at least 1, not {members}, {episodes} and {patience}"
            )
        if sigma <= 0 or spread < 0 or weight_decay < 0:
            raise ValueError(
                "sigma must be more than 0, spread and weight_decay 0 or more, "
                f"not {sigma}, {spread} and {weight_decay}"
            )
        if not 0 < share_step <= 1:
            raise ValueError(f"share_step must be more than 0 and at most 1, not {share_step}")
        start = start_parameters(initial)
        noise = noise or usual_table(start.size)
        noise.index(seed, 0, start.size)  # says so if the table is too small
        self._draws = Draws(noise, seed, start.size)
        self._sigma, self._weight_decay = sigma, weight_decay
        self._method, self._share_step, self._patience = method, share_step, patience
        self._episodes = episodes
        self.archive: NoveltyArchive = NoveltyArchive(k, capacity)
        self.share: float = _METHODS[method][0]
        """What the rank of fitness counts; the rank of novelty counts the rest."""
        starts = Draws(noise, derive(seed, _START), start.size)
        self._members = [
            PopulationCenter(_start(start, spread, starts[number]), make_optimizer(optimizer, learning_rate))
            for number in range(members)
        ]
        self._best: tuple[float, Vector] | None = None
        """The centre with the highest fitness so far."""
        self._since_best = 0
        self._next = 0
        self._plan = self._planned()
        self._told: list[tuple[int, float, Floats]] = []
        self._num_perturbed = 0
        """Of those told: perturbations."""
        self._dropped = 0
        self._skipped = 0
        self._evaluator: NoveltyEvaluator | None = None
        self._figures: dict[str, float] = {}

    # Candidates

    def ask(self, n: int) -> range:
        """Numbers: those of a whole generation for `n >= population`, else `n`."""
        if n < 0:
            raise ValueError(f"n must be 0 or more candidates, not {n}")
        handed_out = self._next - self._plan.first
        size = self._plan.first_perturbed - self._plan.first + self.population
        asks_for_generations = n >= self.population
        if self._num_perturbed >= self.population or (
            asks_for_generations and handed_out >= size and self._num_perturbed
        ):
            self._step()  # some were carried over or are missing
            return self.ask(n)
        if asks_for_generations:
            n = size - handed_out if handed_out < size else self.population
        self._next += n
        return range(self._next - n, self._next)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Note the outcomes; a generation that is complete ends in a step.

        Raises:
            ValueError: an outcome has no behaviour, though its evaluation did not fail.
        """
        for number, outcome in zip(candidates, outcomes, strict=True):
            if not 0 <= number < self._next:
                raise ValueError(f"candidate {number} was never asked; {self._next} were, from 0 on")
            if number < self._plan.first:
                self._skipped += 1
            elif outcome.behaviour is not None:
                self._told.append((number, outcome.fitness, outcome.behaviour))
                self._num_perturbed += number >= self._plan.first_perturbed
            elif outcome.failure:
                self._dropped += 1
            else:
                raise ValueError(
                    "novelty search needs to know what a candidate did, and the fitness function returned a fitness "
                    "alone; let it return ropewalk.population.Outcome(fitness, behaviour=...)"
                )
        self._step_if_complete()

    def drop(self, candidates: Sequence[int]) -> None:
        """These will not be told."""
        self._dropped += sum(number >= self._plan.first for number in candidates)
        self._step_if_complete()

    def evaluator(self) -> NoveltyEvaluator:
        if self._evaluator is None:
            centre = self._members[self._plan.member].parameters
            self._evaluator = NoveltyEvaluator(
                self._plan,
                Perturbed(centre, self._sigma, self._draws),
                {member: self._members[member].parameters for member in self._plan.centres},
            )
        return self._evaluator

    def _step_if_complete(self) -> None:
        size = self._plan.first_perturbed - self._plan.first + self.population
        if len(self._told) + self._dropped >= size and self._num_perturbed:
            self._step()

    # A generation

    def _step(self) -> None:
        self._told.sort(key=lambda told: told[0])
        self._meet_centres()
        perturbed = [told for told in self._told if told[0] >= self._plan.first_perturbed]
        fitnesses = np.array([fitness for _, fitness, _ in perturbed])
        novelties = self.archive.novelty(np.array([behaviour for _, _, behaviour in perturbed]))
        weights = self.share * centred_ranks(fitnesses) + (1 - self.share) * centred_ranks(novelties)
        numbers, of_draws = weights_of_draws(np.array([number for number, _, _ in perturbed], np.int64), weights)
        gradient = weighted_sum(self._draws, numbers, of_draws, self.map)
        gradient /= np.float32(len(perturbed))
        member = self._members[self._plan.member]
        if self._weight_decay:
            gradient -= np.float32(self._weight_decay) * member.parameters
        member.parameters = _frozen(member.optimizer.step(member.parameters, gradient))
        member.is_known = False

        self._figures = {
            "novelty": float(novelties.mean()),
            "archive": float(len(self.archive)),
            "member": float(self._plan.member),
            "share": self.share,
            "gradient_norm": float(np.linalg.norm(gradient)),
            "stale": self._skipped / (self._skipped + len(self._told)),
        } | ({"best_centre": self._best[0]} if self._best else {})
        self.generation += 1
        self._told, self._num_perturbed, self._dropped, self._skipped = [], 0, 0, 0
        self._plan = self._planned()
        self._evaluator = None

    def _meet_centres(self) -> None:
        """Centres that were evaluated: into the archive, and perhaps the best."""
        for number in self._plan.centres:
            seen = [(fitness, behaviour) for at, fitness, behaviour in self._told if self._plan.centre(at) == number]
            if not seen:
                continue  # asked again in the next generation
            member = self._members[number]
            behaviour = np.mean([behaviour for _, behaviour in seen], axis=0)
            member.behaviour, member.is_known = behaviour, True
            self.archive.add(behaviour)
            fitness = float(np.mean([fitness for fitness, _ in seen]))
            if self._best is None or fitness > self._best[0]:
                self._best, self._since_best = (fitness, member.parameters), 0
                self._adapt(self._share_step)
            else:
                self._since_best += 1
                if self._since_best >= self._patience:
                    self._since_best = 0
                    self._adapt(-self._share_step)

    def _adapt(self, change: float) -> None:
        """Algorithm 3."""
        if _METHODS[self._method][1]:
            self.share = min(1.0, max(0.0, self.share + change))

    def _planned(self) -> Generation:
        centres = tuple(number for number, member in enumerate(self._members) if not member.is_known)
        self._next += (self._next + len(centres) * self._episodes) % 2
        chance = derive(derive(self.seed, _CHOICE), self.generation) / 2**64
        return Generation(self._next, chosen(self._members, self.archive, chance), centres, self._episodes)

    # What it has found

    def incumbent(self) -> Vector | None:
        """The centre with the highest fitness so far, read-only."""
        return self._best[1] if self._best else None

    def figures(self) -> dict[str, float]:
        """Of the last step: mean novelty, size of the archive, member, share of fitness, norm of the gradient, best."""
        return self._figures

    # State

    def state_dict(self) -> dict[str, Any]:
        return {
            "identity": self._identity(),
            "generation": self.generation,
            "next": self._next,
            "plan": asdict(self._plan),
            "numbers": np.array([number for number, _, _ in self._told], np.int64),
            "fitnesses": np.array([fitness for _, fitness, _ in self._told], np.float64),
            "behaviours": np.array([behaviour for _, _, behaviour in self._told], np.float64),
            "dropped": self._dropped,
            "skipped": self._skipped,
            "share": self.share,
            "since_best": self._since_best,
            "best": None if self._best is None else {"fitness": self._best[0], "parameters": self._best[1]},
            "archive": self.archive.state_dict(),
            "members": [member.state_dict() for member in self._members],
            "figures": dict(self._figures),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state["identity"], self._identity())
        self.generation: int = int(state["generation"])
        self._next = int(state["next"])
        self._plan = Generation(**state["plan"] | {"centres": tuple(state["plan"]["centres"])})
        told = zip(state["numbers"].tolist(), state["fitnesses"].tolist(), state["behaviours"], strict=True)
        self._told = [(number, fitness, np.array(behaviour)) for number, fitness, behaviour in told]
        self._num_perturbed = sum(number >= self._plan.first_perturbed for number, _, _ in self._told)
        self._dropped, self._skipped = int(state["dropped"]), int(state["skipped"])
        self.share, self._since_best = float(state["share"]), int(state["since_best"])
        best = state["best"]
        self._best = None if best is None else (float(best["fitness"]), start_parameters(best["parameters"]))
        self.archive.load_state_dict(state["archive"])
        for member, saved in zip(self._members, state["members"], strict=True):
            member.load_state_dict(saved)
        self._figures = dict(state["figures"])
        self._evaluator = None

    def _identity(self) -> dict[str, Any]:
        return {
            "algorithm": "NoveltyES",
            "parameters": self._draws.dim,
            "population": self.population,
            "method": self._method,
            "members": len(self._members),
            "episodes": self._episodes,
            "k": self.archive.k,
            "seed": self.seed,
            "noise": repr(self._draws.table),
        }


def _start(common: Vector, spread: float, draw: Vector) -> Vector:
    return _frozen(np.add(common, np.multiply(draw, np.float32(spread), dtype=np.float32)))


def _frozen(parameters: Vector) -> Vector:
    parameters.flags.writeable = False
    return parameters
