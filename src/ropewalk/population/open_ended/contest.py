"""Which agent is the best in an environment: each as it is, and after one step there. Pure.

Wang, Lehman, Clune, Stanley: Paired Open-Ended Trailblazer (POET), 2019 (https://arxiv.org/abs/1901.01753),
algorithm 4, for several environments at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransferCandidate:
    """An agent that could move into an environment."""

    score: float
    source: int
    """Its number among the agents."""
    proposal: int | None
    """The number of the proposal, if it takes a step first; None if it comes as it is."""


class Contest:
    """Agents against each other, in each of some environments.

    Args:
        num_agents: how many agents there are.
        child: whether they contest one new environment; else each has one of its own, and contests those of the others.
    """

    def __init__(self, num_agents: int, *, child: bool) -> None:
        self.entries = [
            (target, source) for target in range(1 if child else num_agents) for source in range(num_agents)
        ]
        """(environment, agent) of those that are evaluated as they are: each agent everywhere."""
        self.guests = [(target, source) for target, source in self.entries if child or target != source]
        """(environment, agent) of the proposals: agents that take a step in an environment that is not their own."""

    def home_scores(self, direct: Sequence[float | None]) -> list[float | None]:
        """Of agents in their own environments; `direct` are the scores of the entries."""
        return [score for (target, source), score in zip(self.entries, direct, strict=True) if target == source]

    def best(self, target: int, direct: Sequence[float | None], proposed: Sequence[float | None]) -> TransferCandidate:
        """The best guest of an environment; of equal ones the first, and as it is rather than after a step.

        Args:
            target: the environment.
            direct: scores of the entries; None where nothing is known.
            proposed: scores of the proposals.
        """
        scores = dict(zip(self.entries, direct, strict=True))
        arrivals: list[TransferCandidate] = []
        for proposal, (where, source) in enumerate(self.guests):
            if where == target:
                arrivals.append(TransferCandidate(_or_worst(scores[where, source]), source, None))
                arrivals.append(TransferCandidate(_or_worst(proposed[proposal]), source, proposal))
        return max(arrivals, key=lambda arrival: arrival.score)


def _or_worst(score: float | None) -> float:
    return float("-inf") if score is None else score
