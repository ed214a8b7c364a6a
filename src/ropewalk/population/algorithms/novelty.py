"""Evolution strategies that seek novelty: NS-ES, NSR-ES and NSRA-ES.

Conti, Madhavan, Petroski Such, Lehman, Stanley, Clune: Improving Exploration in Evolution Strategies for Deep
Reinforcement Learning via a Population of Novelty-Seeking Agents, 2018 (https://arxiv.org/abs/1712.06560), algorithms 1
to 3. Several members evolve towards behaviours that none of them has shown before:

    archive ─▶ novelty of members ─▶ one of them, by chance ─▶ centre ± sigma · draw ─▶ behaviour, fitness
       ▲                                                                                   │
       └── behaviour of the new centre ◀── Adam ◀── Σ (share · rank of fitness + (1 - share) · rank of novelty) · draw

NS-ES has a share of 0, NSR-ES a share of 0.5, and the share of NSRA-ES falls while the fitness does not improve. It
departs from the paper in one place: a new centre is evaluated concurrently with the next generation, so that workers
need not wait for one evaluation between two generations. Its behaviour is in the archive when the novelty of that
generation is computed, as in the paper; the choice of the member for that generation still uses its previous behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ropewalk.near_names import check_choice
from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm
from ropewalk.population.archives.finite_behaviours import check_finite
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
_METHODS = {"ns": (0.0, False), "nsr": (0.5, False), "nsra": (1.0, True)}
"""The initial share of fitness, and whether it adapts, by method."""


class NoveltyES(Algorithm[int]):
    """Novelty-seeking evolution strategies. Fitness functions return `Outcome(fitness, behaviour=...)`.

    Conti et al., Improving Exploration in Evolution Strategies for Deep Reinforcement Learning, 2018
    (https://arxiv.org/abs/1712.06560).

    It is designed for generations: in steady state, and for stragglers, candidates that were asked for before the last
        step
    are skipped.

    Args:
        initial: initial parameters, of shape (parameters,), or their number: then zeros.
        population: number of perturbations in a generation, even; evaluations of centres are additional.
        method: "ns" for novelty alone; "nsr" for novelty and fitness in equal shares; "nsra" for a share of fitness
            that starts at 1, falls by `share_step` after `patience` generations without a better fitness of a centre,
            and grows by the same step with each better fitness.
        members: size of the meta-population; one member takes a step in each generation.
        spread: standard deviation of the members' starts from `initial`.
        sigma: standard deviation of the noise.
        learning_rate: learning rate of the optimizer.
        optimizer: "adam", "momentum" (SGD with 0.9) or "sgd".
        weight_decay: factor of the parameters that are subtracted from the gradient.
        k: number of nearest neighbours for novelty.
        capacity: maximum number of behaviours in the archive; None for no limit.
        episodes: number of evaluations of a new centre; its behaviour and fitness are their means.
        share_step: see `method`.
        patience: see `method`.
        noise: the noise table; by default one that suits the number of parameters.
        seed: seed of the noise and of the choices.
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
        check_choice("method", method, _METHODS)
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
        noise.index(seed, 0, start.size)  # raises if the table is too small
        self._draws = Draws(noise, seed, start.size)
        self._sigma, self._weight_decay = sigma, weight_decay
        self._method, self._share_step, self._patience = method, share_step, patience
        self._episodes = episodes
        self.archive: NoveltyArchive = NoveltyArchive(k, capacity)
        self.share: float = _METHODS[method][0]
        """Weight of the rank of fitness; the rank of novelty has the remaining weight."""
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
        """Number of perturbations that were told."""
        self._dropped = 0
        self._skipped = 0
        self._evaluator: NoveltyEvaluator | None = None
        self._figures: dict[str, float] = {}

    # Candidates

    def ask(self, n: int) -> range:
        """Return candidate numbers: those of a whole generation if `n >= population`, else `n` of them."""
        if n < 0:
            raise ValueError(f"n must be 0 or more candidates, not {n}")
        handed_out = self._next - self._plan.first
        size = self._plan.first_perturbed - self._plan.first + self.population
        asks_for_generations = n >= self.population
        if self._num_perturbed >= self.population or (
            asks_for_generations and handed_out >= size and self._num_perturbed
        ):
            self._step()  # some candidates were carried over or are missing
            return self.ask(n)
        if asks_for_generations:
            n = size - handed_out if handed_out < size else self.population
        self._next += n
        return range(self._next - n, self._next)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes, and take a step when the generation is complete.

        Raises:
            ValueError: an outcome has no behaviour, although its evaluation did not fail, or one that is not finite.
        """
        for outcome in outcomes:
            if outcome.behaviour is not None:
                check_finite(outcome.behaviour[None])
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
        """Note that these candidates will never be told."""
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
        """Add evaluated centres to the archive, and update the best one."""
        for number in self._plan.centres:
            seen = [(fitness, behaviour) for at, fitness, behaviour in self._told if self._plan.centre(at) == number]
            if not seen:
                continue  # the next generation asks for it again
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
        """Adapt the share of fitness (algorithm 3)."""
        if _METHODS[self._method][1]:
            self.share = min(1.0, max(0.0, self.share + change))

    def _planned(self) -> Generation:
        centres = tuple(number for number, member in enumerate(self._members) if not member.is_known)
        self._next += (self._next + len(centres) * self._episodes) % 2
        chance = derive(derive(self.seed, _CHOICE), self.generation) / 2**64
        return Generation(self._next, chosen(self._members, self.archive, chance), centres, self._episodes)

    # Results

    def incumbent(self) -> Vector | None:
        """Return the centre with the highest fitness so far, read-only."""
        return self._best[1] if self._best else None

    def figures(self) -> dict[str, float]:
        """Return figures of the last step, such as mean novelty, archive size, share of fitness and gradient norm."""
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
