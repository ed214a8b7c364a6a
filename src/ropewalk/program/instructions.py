"""The supervisor's data: its rules for nodes, its instructions, and the states of replicas."""

from __future__ import annotations

import dataclasses
import enum

from ropewalk.program.restart_rule import Restart
from ropewalk.quantities import shown_duration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """The supervisor's rule for one node."""

    name: str
    replicas: int = 1
    restart: Restart = dataclasses.field(default_factory=lambda: Restart("never"))
    gang: str = ""
    """Nodes of one gang with strategy "together" restart as a whole; empty for the node's own name."""
    essential: bool = True
    """Whether its failure fails the program, and the program waits for its end if it is finite."""
    finite: bool = False
    """Whether it runs to completion; other nodes serve until they are ended."""


class ReplicaState(enum.Enum):
    """The state of a replica; the drawing in `supervisor` shows the changes."""

    WAITING = "waiting"
    """To be started, after its wait and when its gang has ended."""
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    REMOVED = "removed"


class ProgramOutcome(enum.Enum):
    """The outcome of the program; RUNNING until it is decided."""

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
    """The program has failed, by this failure: the first of those that led to its end."""

    name: str
    replica: int
    generation: int
    """Of the replica when it failed; identifies its death record."""
    cause: str
    reason: str
    """The reason why it is not restarted, or not again."""
    deaths: tuple[str, ...]
    """The causes of all failures that counted, oldest first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """The program has completed; replicas that still live are ended."""


Instruction = Start | EndReplica | Failed | Completed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sequel:
    """What follows the latest failure of a replica, while the program runs."""

    reason: str
    """Why it is not restarted; empty if it is."""
    wait_s: float = 0.0
    """Seconds until then."""
    num_together: int = 1
    """Number of replicas that restart together with it, itself included."""
    num_failures: int = 1
    """Number of failures that count against `max_restarts`."""
    max_restarts: int = 0
    window: str = ""
    """The time in which they count, in words that follow a number of restarts; empty if all count."""

    def in_words(self, peers: str = "of its gang") -> str:
        """Words that follow the death of the replica.

        Args:
            peers: what the replicas are that restart together, after their number.
        """
        if self.reason:
            return f"it is not started again ({self.reason}), and the program goes on without it"
        again = "it starts again" if self.num_together == 1 else f"all {self.num_together} {peers} start again"
        wait = f" in {shown_duration(self.wait_s)}" if self.wait_s > 0 else ""
        return f"{again}{wait} (restart {self.num_failures} of at most {self.max_restarts}{self.window})"


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica at this moment."""

    name: str
    replica: int
    state: ReplicaState
    generation: int
    """Of its latest start, from 0; -1 before the first start."""
    num_failures: int
    cause: str
    """The cause of its latest failure; empty if it never failed."""
    due: float | None
    """Time at which its wait is over, if it waits."""
    healed: bool = False
    """Whether it has become ready since its latest failure."""
