"""The supervisor's records: nodes, their replicas, and the gangs that are restarted as a whole."""

from __future__ import annotations

import dataclasses
from collections import deque

from ropewalk.program.instructions import Failed, NodeRule, ReplicaState, ReplicaStatus
from ropewalk.program.restart_rule import Restart

HISTORY_LENGTH = 40
"""Number of a replica's changes that are kept for the message of an impossible event."""
_ALIVE = frozenset([ReplicaState.STARTING, ReplicaState.READY, ReplicaState.ENDING])


class Gang:
    """The unit of restart: a single replica, or all replicas of nodes with strategy "together"."""

    def __init__(self, key: str, rule: Restart, seed: int) -> None:
        self.key = key
        self.rule = rule
        self.members: list[Replica] = []
        self.generation = -1
        self.due: float | None = None
        """Monotonic time of the planned start; None if none is planned."""
        self.given_up = ""
        """Why it is not restarted any more; empty if it may be."""
        self._seed = f"{seed} {key}"
        self.renew_budget()

    @property
    def alive(self) -> bool:
        """Whether one of its processes may live."""
        return any(member.alive for member in self.members)

    @property
    def wanted(self) -> list[Replica]:
        """The members that were not scaled away."""
        return [member for member in self.members if member.wanted]

    def renew_budget(self) -> None:
        """Forget its failures."""
        self.intensity = self.rule.intensity(self._seed)
        self.failures: deque[Failed] = deque(maxlen=self.rule.max_restarts + 1)
        """The failures that can count in one decision, oldest first."""


@dataclasses.dataclass(slots=True, eq=False)
class SupervisedNode:
    """A node and all replicas that it ever had; the first `wanted` of them should run."""

    rule: NodeRule
    wanted: int
    replicas: list[Replica] = dataclasses.field(default_factory=list["Replica"])


@dataclasses.dataclass(slots=True, eq=False)
class Replica:
    """One replica of a node."""

    node: SupervisedNode
    index: int
    gang: Gang
    state: ReplicaState = ReplicaState.WAITING
    generation: int = -1
    num_failures: int = 0
    cause: str = ""
    healed: bool = False
    waits_for_stop: bool = False
    """Whether it has reported that it runs until it is asked to end."""
    history: deque[str] = dataclasses.field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))

    @property
    def alive(self) -> bool:
        """Whether its process may live."""
        return self.state in _ALIVE

    @property
    def wanted(self) -> bool:
        """Whether it was not scaled away."""
        return self.index < self.node.wanted

    @property
    def awaited(self) -> bool:
        """Whether the program is complete only when this replica is."""
        rule = self.node.rule
        return rule.essential and rule.finite and self.gang.rule.policy != "always" and not self.waits_for_stop

    @property
    def status(self) -> ReplicaStatus:
        """Its current state."""
        return ReplicaStatus(
            self.node.rule.name,
            self.index,
            self.state,
            self.generation,
            self.num_failures,
            self.cause,
            self.gang.due if self.state is ReplicaState.WAITING else None,
            self.healed,
        )

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.node.rule.name}/{self.index}"
