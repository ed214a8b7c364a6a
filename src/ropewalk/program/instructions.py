"""What the supervisor of a program knows of a node, what it says is to be done, and how things stand."""

from __future__ import annotations

import dataclasses
import enum

from ropewalk.program.restart_rule import Restart


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """What the supervisor must know of one node."""

    name: str
    replicas: int = 1
    restart: Restart = dataclasses.field(default_factory=lambda: Restart("never"))
    gang: str = ""
    """Nodes of one gang with strategy "together" restart as one; empty: the node's own name."""
    essential: bool = True
    """Whether its failure is the program's, and the program waits for its end if it is finite."""
    finite: bool = False
    """Whether it runs to completion; others serve until they are ended."""


class ReplicaState(enum.Enum):
    """Where a replica stands; the drawing at the top shows the changes."""

    WAITING = "waiting"
    """Will be started: after its wait, and when its gang has ended."""
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    REMOVED = "removed"


class ProgramOutcome(enum.Enum):
    """How the program ends, or that it has not yet been decided."""

    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


# Instructions


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Start this replica."""

    name: str
    replica: int
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class EndReplica:
    """Ask this replica to end, and kill it if it does not; `ended` is reported in any case."""

    name: str
    replica: int
    generation: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The program has failed: this is the failure to show, the first one of those that led here."""

    name: str
    replica: int
    generation: int
    """Of the replica when it failed: its death record is found by it."""
    cause: str
    reason: str
    """Why it is not restarted (again)."""
    deaths: tuple[str, ...]
    """The causes of all failures that counted, oldest first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """The program has done what it was for; what still lives is ended."""


Instruction = Start | EndReplica | Failed | Completed


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica at this moment."""

    name: str
    replica: int
    state: ReplicaState
    generation: int
    """Of its latest start, the first is 0; -1 before it."""
    num_failures: int
    cause: str
    """Of its latest failure; empty if it never failed."""
    due: float | None
    """When its wait is over, if it waits for that."""
    healed: bool = False
    """Whether it has become ready since its latest failure."""
