"""Numbered candidates on their way: asked, told in any grouping and order, late, or missing for good.

    asked ▕ 0 1 2 3 ▏ 4 5 6 7 ▏ 8 9 … ▶       a bar for each step: what was asked before is stale behind it
    told      ■   ■   ■ □ ■ ■   ■            a batch: `population` of them, no older than `max_age` steps

Salimans et al. count a result of older parameters as stale and skip it (https://arxiv.org/abs/1703.03864; es.py of
https://github.com/openai/evolution-strategies-starter). Here they are used up to an age, as if they were new: the noise
is the same, the parameters have moved by a few steps.
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
from ropewalk.population.outcome import Outcome
from ropewalk.population.weighted_sum import Numbers


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """What a step learns from, in the order of the candidates."""

    candidates: Numbers
    fitnesses: NDArray[np.float64]
    observations: list[Any]
    """Counted observations, of those who counted."""
    late: int
    """How many were asked for before the last step."""
    skipped: int
    """How many were too old, and are not here."""

    @property
    def stale(self) -> float:
        """The share of results that were not of the newest parameters, used or skipped."""
        return (self.late + self.skipped) / max(1, len(self.candidates) + self.skipped)


class NumberedCandidates:
    """Gives numbers out and gathers what is told of them.

    Args:
        population: how many results make a batch.
        max_age: use results of parameters that are so many steps old.
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
        """The next `n` numbers."""
        if n < 0:
            raise ValueError(f"n must be 0 or more candidates, not {n}")
        self._next += n
        return range(self._next - n, self._next)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Gather these.

        Raises:
            ValueError: one that was never asked, or not as many outcomes as candidates.
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
        """These will not be told."""
        self._dropped += len(candidates)

    @property
    def is_full(self) -> bool:
        """Whether a batch is there: with those that will be missing it has `population`."""
        return bool(self._told) and len(self._told) + self._dropped >= self._population

    @property
    def is_empty(self) -> bool:
        """Whether nothing usable was told since the last batch."""
        return not self._told

    def take(self) -> EvaluatedBatch:
        """All that was told and is usable; what is asked from now on is of new parameters."""
        self._told.sort(key=lambda told: told[0])
        batch = EvaluatedBatch(
            np.array([candidate for candidate, _, _ in self._told], np.int64),
            np.array([fitness for _, fitness, _ in self._told], np.float64),
            [observations for _, _, observations in self._told if observations is not None],
            sum(candidate < self._firsts[-1] for candidate, _, _ in self._told),
            self._skipped,
        )
        self._told, self._dropped, self._skipped = [], 0, 0
        self._next += self._next % 2  # the other half of a pair would be of other parameters
        self._firsts.append(self._next)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Numbers and what was told since the last batch."""
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
        """Become what `state_dict` was taken from."""
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
    """Learns from batches of numbered candidates.

    It takes a step in `tell` as soon as it was told of `population` candidates, or of fewer if the others were dropped;
    and before it gives a whole new generation out, of what there is.

    Args:
        population: as of `Algorithm`.
        seed: as of `Algorithm`.
        max_age: use results of parameters that are so many steps old.
    """

    generation: int

    def __init__(self, population: int, seed: int, max_age: int) -> None:
        super().__init__(population, seed)
        self._numbered = NumberedCandidates(population, max_age)

    @abstractmethod
    def _learn(self, batch: EvaluatedBatch) -> None:
        """Take a step; the batch is not empty."""

    def ask(self, n: int) -> range:
        if n >= self.population and not self._numbered.is_empty:
            self._step()  # some were carried over or are missing
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
        self.generation += 1
