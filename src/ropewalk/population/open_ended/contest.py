"""A contest of agents for environments: each agent unperturbed, and after one step there. Pure.

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
    """Index of the agent."""
    proposal: int | None
    """Index of the proposal, if the agent takes a step first; None if it moves unchanged."""


class Contest:
    """The agents compared with each other in each of several environments.

    Args:
        num_agents: number of agents.
        child: whether all agents contest one new environment; otherwise each has its own, and contests the others.
    """

    def __init__(self, num_agents: int, *, child: bool) -> None:
        self.entries = [
            (target, source) for target in range(1 if child else num_agents) for source in range(num_agents)
        ]
        """(environment, agent) of the unperturbed evaluations: each agent in every environment."""
        self.guests = [(target, source) for target, source in self.entries if child or target != source]
        """(environment, agent) of the proposals: agents that take a step in an environment of another agent."""

    def home_scores(self, direct: Sequence[float | None]) -> list[float | None]:
        """Return the scores of agents in their own environments; `direct` are the scores of the entries."""
        return [score for (target, source), score in zip(self.entries, direct, strict=True) if target == source]

    def best(self, target: int, direct: Sequence[float | None], proposed: Sequence[float | None]) -> TransferCandidate:
        """Return the best agent for an environment; among equals the first, and an unchanged agent before a proposal.

        Args:
            target: index of the environment.
            direct: scores of the entries; None if a score is unknown.
            proposed: scores of the proposals; None if a score is unknown.
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
