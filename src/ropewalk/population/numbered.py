"""Bookkeeping of numbered candidates, which may be told in any grouping and order, late, or never.

    asked ▕ 0 1 2 3 ▏ 4 5 6 7 ▏ 8 9 … ▶       a bar for each step: candidates asked for before it are stale after it
    told      ■   ■   ■ □ ■ ■   ■            a batch: `population` of them, no older than `max_age` steps

Salimans et al. count a result of older parameters as stale and skip it (https://arxiv.org/abs/1703.03864; es.py of
https://github.com/openai/evolution-strategies-starter). Here such results are used up to an age, as if they were new:
the noise is the same, and the parameters have moved by a few steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.identity import check_identity
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.outcome import Outcome
from ropewalk.population.perturbed import Perturbed, usual_table
from ropewalk.population.weighted_sum import Draws, Numbers


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """The results of one step, in the order of the candidates."""

    candidates: Numbers
    fitnesses: NDArray[np.float64]
    observations: list[Any]
    """The observation statistics of the evaluations that counted them."""
    late: int
    """Number of results that were asked for before the last step."""
    skipped: int
    """Number of results that were too old, and are not included."""

    @property
    def stale(self) -> float:
        """The share of results that did not belong to the newest parameters, used or skipped."""
        return (self.late + self.skipped) / max(1, len(self.candidates) + self.skipped)


class NumberedCandidates:
    """Hands out numbers, and collects their outcomes.

    Args:
        population: number of results in a batch.
        max_age: maximum age of results, in steps since their parameters were current.
    """

    def __init__(self, population: int, max_age: int) -> None:
        if max_age < 0:
            raise ValueError(f"max_age must be 0 steps or more, not {max_age}")
        self._population = population
        self._firsts: deque[int] = deque([0], maxlen=max_age + 1)
        """The first candidate after each of the last steps."""
        self._next = 0
        self._dropped = 0
        self._skipped = 0
        self._told: list[tuple[int, float, Any]] = []

    def ask(self, n: int) -> range:
        """Return the next `n` numbers."""
        if n < 0:
            raise ValueError(f"n must be 0 or more candidates, not {n}")
        self._next += n
        return range(self._next - n, self._next)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Collect outcomes.

        Raises:
            ValueError: a candidate was never asked for, or the numbers of outcomes and candidates differ.
        """
        oldest = self._firsts[0]
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            if not 0 <= candidate < self._next:
                raise ValueError(f"candidate {candidate} was never asked; {self._next} were, from 0 on")
            if candidate < oldest:
                self._skipped += 1
            else:
                self._told.append((candidate, outcome.fitness, outcome.observations))

    def drop(self, candidates: Sequence[int]) -> None:
        """Note that these candidates will never be told; the batch that those of the newest parameters make is smaller.

        One that was asked for before the last step would have been in addition to the `population` of a batch, as the
        candidates are that are under way when a run in steady state ends.
        """
        self._dropped += sum(candidate >= self._firsts[-1] for candidate in candidates)

    @property
    def is_full(self) -> bool:
        """Whether a batch is complete: results and dropped candidates together reach `population`."""
        return bool(self._told) and len(self._told) + self._dropped >= self._population

    @property
    def is_empty(self) -> bool:
        """Whether no usable result was told since the last batch."""
        return not self._told

    def take(self) -> EvaluatedBatch:
        """Return all usable results as a batch; later asks belong to new parameters."""
        self._told.sort(key=lambda told: told[0])
        batch = EvaluatedBatch(
            np.array([candidate for candidate, _, _ in self._told], np.int64),
            np.array([fitness for _, fitness, _ in self._told], np.float64),
            [observations for _, _, observations in self._told if observations is not None],
            sum(candidate < self._firsts[-1] for candidate, _, _ in self._told),
            self._skipped,
        )
        self._told, self._dropped, self._skipped = [], 0, 0
        self._next += self._next % 2  # otherwise the two halves of a pair would belong to different parameters
        self._firsts.append(self._next)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers, and the results since the last batch."""
        return {
            "next": self._next,
            "firsts": list(self._firsts),
            "dropped": self._dropped,
            "skipped": self._skipped,
            "candidates": np.array([candidate for candidate, _, _ in self._told], np.int64),
            "fitnesses": np.array([fitness for _, fitness, _ in self._told], np.float64),
            "observations": [
                None
                if observations is None
                else [observations[0], np.array(observations[1]), np.array(observations[2])]
                for _, _, observations in self._told
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._next, self._dropped, self._skipped = int(state["next"]), int(state["dropped"]), int(state["skipped"])
        self._firsts.clear()
        self._firsts.extend(map(int, state["firsts"]))
        self._told = [
            (int(candidate), float(fitness), None if observations is None else tuple(observations))
            for candidate, fitness, observations in zip(
                state["candidates"], state["fitnesses"], state["observations"], strict=True
            )
        ]


class NumberedAlgorithm(Algorithm[int]):
    """The base class of algorithms that learn from batches of numbered candidates.

    It takes a step in `tell` as soon as `population` candidates are told, or fewer if the others were dropped; and in
    `ask`, with the available results, before it hands out a whole new generation.

    Args:
        population: as in `Algorithm`.
        seed: as in `Algorithm`.
        max_age: maximum age of results, in steps since their parameters were current.
        dim: number of parameters.
        noise: the table from which their draws are taken; None for the usual one.
    """

    generation: int

    def __init__(self, population: int, seed: int, max_age: int, dim: int, noise: NoiseTable | None) -> None:
        super().__init__(population, seed)
        self._numbered = NumberedCandidates(population, max_age)
        self._draws = Draws(noise if noise is not None else usual_table(dim), seed, dim)
        self._draws.table.index(seed, 0, dim)  # raises if the table is too small
        self._evaluator: Perturbed | None = None
        self._figures: dict[str, float] = {}

    @abstractmethod
    def _learn(self, batch: EvaluatedBatch) -> None:
        """Take a step from a batch, which is not empty."""

    def ask(self, n: int) -> range:
        if n >= self.population and not self._numbered.is_empty:
            self._step()  # some candidates were carried over or are missing
        return self._numbered.ask(n)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        self._numbered.tell(candidates, outcomes)
        if self._numbered.is_full:
            self._step()

    def drop(self, candidates: Sequence[int]) -> None:
        self._numbered.drop(candidates)
        if self._numbered.is_full:
            self._step()

    def _step(self) -> None:
        self._learn(self._numbered.take())
        self._evaluator = None
        self.generation += 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "identity": self._identity(),
            "generation": self.generation,
            "numbered": self._numbered.state_dict(),
            "figures": dict(self._figures),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_identity(state["identity"], self._identity())
        self.generation = int(state["generation"])
        self._numbered.load_state_dict(state["numbered"])
        self._figures = dict(state["figures"])
        self._evaluator = None

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return the facts that a state must match."""
