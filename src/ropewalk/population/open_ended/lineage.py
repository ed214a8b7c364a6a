"""The history of a POET run: the descent of environments, and the transfers of agents."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ropewalk.population.open_ended.environment_space import Environment


@dataclass(slots=True)
class Branch:
    """One environment since its birth. Times are generations."""

    number: int
    parent: int | None
    environment: Environment
    born: int
    retired: int | None = None
    """The time at which it was archived to make room; None while it is active."""
    score: float | None = None
    """The best score of its agents, each at the time of its evaluation."""


@dataclass(frozen=True, slots=True)
class AgentTransfer:
    """An agent moved into the environment of another one."""

    generation: int
    source: int
    target: int
    fine_tuned: bool
    """Whether the agent took a step in its new environment first (a proposal) or moved unchanged (direct)."""


@dataclass(slots=True)
class Lineage:
    """All environments that were ever admitted, by number, and all transfers, in order."""

    branches: list[Branch] = field(default_factory=list[Branch])
    transfers: list[AgentTransfer] = field(default_factory=list[AgentTransfer])

    def add(self, environment: Environment, parent: int | None, born: int) -> Branch:
        """Add an environment that is admitted."""
        branch = Branch(len(self.branches), parent, environment, born)
        self.branches.append(branch)
        return branch

    def scored(self, number: int, score: float | None) -> None:
        """Record the score of an agent in its environment."""
        branch = self.branches[number]
        if score is not None and (branch.score is None or score > branch.score):
            branch.score = score

    def depth(self, number: int) -> int:
        """Return the number of ancestors of an environment."""
        depth, parent = 0, self.branches[number].parent
        while parent is not None:
            depth, parent = depth + 1, self.branches[parent].parent
        return depth

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "branches": [asdict(branch) for branch in self.branches],
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Lineage:
        """Restore a lineage from `state_dict`."""
        return cls(
            [Branch(**each) for each in state["branches"]], [AgentTransfer(**each) for each in state["transfers"]]
        )
