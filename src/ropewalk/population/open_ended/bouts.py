"""Rounds of evaluations of agents in environments, numbered, as POET asks for them. Pure.

    bout 0: agent 0, environment 0, perturbed   ▕ 40 41 42 43 ▏   mirrored: 40 and 41 are draw k, plus and minus
    bout 1: agent 1, environment 0, unperturbed ▕ 44 45 ▏         two episodes
                                                  └─ a candidate is its number; the evaluator holds the plan

A round is sent once to each host, with the parameters of its agents and the records of its environments; for each
evaluation only a number is sent. Numbers are never reused, so a late outcome is recognised by its number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.open_ended.environment_space import Environment
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.perturbed import weights_of_draws
from ropewalk.population.ranks import Floats
from ropewalk.population.trial import Trial
from ropewalk.population.weighted_sum import Draws, Group, Vector


@dataclass(frozen=True, slots=True)
class AgentEnvPair:
    """An environment and its agent."""

    number: int
    """The number of the environment, from 0 in the order of their births."""
    environment: Environment
    parameters: Vector
    score: float | None
    """The score of the agent in its environment when it was last evaluated there."""


@dataclass(frozen=True, slots=True)
class Bout:
    """The evaluations of one agent in one environment."""

    agent: int
    """Index of the agent among the parameters of the round."""
    environment: int
    """Index of the environment in the round."""
    num_evaluations: int
    sigma: float = 0.0
    """Standard deviation of the noise; 0 evaluates the agent unperturbed."""
    first_draw: int = 0
    """Evaluations 2k and 2k + 1 use the agent plus and minus draw `first_draw + k`."""


class BoutEvaluator(Evaluator[int]):
    """Calls `fitness(parameters, environment, trial)` for a candidate number.

    Args:
        first: the number of the first evaluation.
        bouts: the bouts of the round.
        agents: parameters of each agent, each float32 of shape (dim,).
        environments: records of the environments.
        draws: the noise.
    """

    num_arguments = 2

    def __init__(
        self, first: int, bouts: Sequence[Bout], agents: Vector, environments: Sequence[Environment], draws: Draws
    ) -> None:
        self._firsts = list(accumulate((bout.num_evaluations for bout in bouts), initial=first))
        self._bouts = bouts
        self._agents = agents
        self._environments = environments
        self._draws = draws

    def parameters(self, candidate: int) -> tuple[Vector, Environment]:
        """Return the parameters and the environment of a candidate number."""
        index = bisect_right(self._firsts, candidate) - 1
        bout = self._bouts[index]
        agent = self._agents[bout.agent]
        if bout.sigma:
            pair, is_minus = divmod(candidate - self._firsts[index], 2)
            noise = self._draws[bout.first_draw + pair] * np.float32(bout.sigma)
            agent = np.subtract(agent, noise, out=noise) if is_minus else np.add(agent, noise, out=noise)
        return agent, self._environments[bout.environment]

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(*self.parameters(candidate), trial))

    def test(self, fitness: Fitness, incumbent: AgentEnvPair, trial: Trial) -> Outcome:
        return outcome_of(fitness(incumbent.parameters, incumbent.environment, trial))


_WAITED_FOR, _TOLD, _DROPPED = 0, 1, 2


class BoutRound:
    """The bouts of a round, with what was asked and told of them.

    Args:
        first: the number of the first evaluation.
        bouts: at least one bout.
        agents: parameters of each agent.
        environments: records of the environments.
        draws: the noise.
    """

    def __init__(
        self,
        first: int,
        bouts: Sequence[Bout],
        agents: Sequence[Vector],
        environments: Sequence[Environment],
        draws: Draws,
    ) -> None:
        self.bouts = list(bouts)
        self.agents = np.stack(agents)
        self.agents.flags.writeable = False
        self.environments = list(environments)
        self.evaluator = BoutEvaluator(first, self.bouts, self.agents, self.environments, draws)
        self._first = self._next = first
        self._firsts = list(accumulate((bout.num_evaluations for bout in bouts), initial=0))
        self.size = self._firsts[-1]
        self._fitness = np.zeros(self.size)
        self._status = np.zeros(self.size, np.int8)

    @property
    def end(self) -> int:
        """The number after the last evaluation."""
        return self._first + self.size

    @property
    def is_complete(self) -> bool:
        """Whether all evaluations were told or dropped."""
        return bool(self._status.all())

    def ask(self, n: int) -> range:
        """Return the next numbers, at most `n`."""
        asked = range(self._next, min(self._next + n, self.end))
        self._next = asked.stop
        return asked

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> int:
        """Record outcomes, and return how many of them belong to this round; the others come too late.

        Raises:
            ValueError: a number was not asked for.
        """
        num_late = 0
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            index = self._index(candidate)
            if index < 0 or self._status[index] == _DROPPED:
                num_late += 1
            else:
                self._fitness[index], self._status[index] = outcome.fitness, _TOLD
        return len(candidates) - num_late

    def drop(self, candidates: Sequence[int]) -> None:
        """Stop waiting for these evaluations."""
        for candidate in candidates:
            index = self._index(candidate)
            if index >= 0 and self._status[index] == _WAITED_FOR:
                self._status[index] = _DROPPED

    def score(self, bout: int) -> float | None:
        """Return the mean fitness of the outcomes of a bout; None if there are none."""
        told = self._of(bout, self._fitness)[self._of(bout, self._status) == _TOLD]
        return float(told.mean()) if len(told) else None

    def group(self, bout: int, weigh: Any) -> tuple[Group, int]:
        """Return the draws of a perturbed bout with their weights, and the number of evaluations they come from.

        Args:
            bout: index of the bout in the round.
            weigh: converts fitnesses to weights, such as `centred_ranks`.
        """
        told = np.flatnonzero(self._of(bout, self._status) == _TOLD)
        weights: Floats = weigh(self._of(bout, self._fitness)[told])
        numbers, weights_of_numbers = weights_of_draws(told, weights)
        return (numbers + self.bouts[bout].first_draw, weights_of_numbers), len(told)

    def state_dict(self) -> dict[str, Any]:
        """Return the bouts without agents and environments, and what was asked and told."""
        return {
            "first": self._first,
            "next": self._next,
            "bouts": [list(astuple(bout)) for bout in self.bouts],
            "fitness": self._fitness.copy(),
            "status": self._status.copy(),
        }

    @classmethod
    def from_state_dict(
        cls, state: dict[str, Any], agents: Sequence[Vector], environments: Sequence[Environment], draws: Draws
    ) -> BoutRound:
        """Restore a round from `state_dict`."""
        bouts = [Bout(int(a), int(e), int(n), float(sigma), int(draw)) for a, e, n, sigma, draw in state["bouts"]]
        this = cls(int(state["first"]), bouts, agents, environments, draws)
        this._next = int(state["next"])
        this._fitness = np.array(state["fitness"], np.float64)
        this._status = np.array(state["status"], np.int8)
        return this

    def _of(self, bout: int, values: NDArray[Any]) -> NDArray[Any]:
        return values[self._firsts[bout] : self._firsts[bout + 1]]

    def _index(self, candidate: int) -> int:
        if candidate >= self._next:
            raise ValueError(f"candidate {candidate} was not asked for; the last one was {self._next - 1}")
        return candidate - self._first
