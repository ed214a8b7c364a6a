"""Which environment descends from which, and which agent moved where: the history of a POET run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ropewalk.population.open_ended.environment_space import Environment


@dataclass(slots=True)
class Branch:
    """One environment, from its birth on. Times are generations."""

    number: int
    parent: int | None
    environment: Environment
    born: int
    retired: int | None = None
    """When it was taken out to make room; None while it is active."""
    score: float | None = None
    """The best score of its agents, each evaluated as it was then."""


@dataclass(frozen=True, slots=True)
class AgentTransfer:
    """An agent moved into the environment of another one."""

    generation: int
    source: int
    target: int
    fine_tuned: bool
    """Whether it took a step in its new environment first (a proposal) or came as it was (direct)."""


@dataclass(slots=True)
class Lineage:
    """All environments that were ever admitted, by their numbers, and all transfers, in order."""

    branches: list[Branch] = field(default_factory=list[Branch])
    transfers: list[AgentTransfer] = field(default_factory=list[AgentTransfer])

    def add(self, environment: Environment, parent: int | None, born: int) -> Branch:
        """An environment is admitted."""
        branch = Branch(len(self.branches), parent, environment, born)
        self.branches.append(branch)
        return branch

    def scored(self, number: int, score: float | None) -> None:
        """The agent of an environment was evaluated there."""
        branch = self.branches[number]
        if score is not None and (branch.score is None or score > branch.score):
            branch.score = score

    def depth(self, number: int) -> int:
        """How many ancestors an environment has."""
        depth, parent = 0, self.branches[number].parent
        while parent is not None:
            depth, parent = depth + 1, self.branches[parent].parent
        return depth

    def state_dict(self) -> dict[str, Any]:
        """Everything."""
        return {
            "branches": [asdict(branch) for branch in self.branches],
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Lineage:
        """The lineage that `state_dict` was taken from."""
        return cls(
            [Branch(**each) for each in state["branches"]], [AgentTransfer(**each) for each in state["transfers"]]
        )
