"""What callers need to know of the place where a service is, and who tells them.

    handle ──▶ client ──"where is learner 2?"──▶ Directory ──▶ ReplicaLocation(up, unix:/..., target 1)

The directory of a program lies with its launcher; this module only says what it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReplicaLocation:
    """Where a replica of a service is, as far as the directory knows."""

    state: str
    """"up", "waiting" (it starts, or starts again), "failed", "completed" or "stopped"."""
    address: str = ""
    target: int = 0
    token: str = ""
    """What this process shows there."""
    generation: int = 0
    cause: str = ""
    """Why it is not up, in one line."""


class Directory(Protocol):
    """Knows where services are."""

    def find(self, name: str, replica: int) -> ReplicaLocation:
        """Where a replica is; asks, and waits for the first answer, if that is not known yet."""
        ...

    def replicas(self, name: str) -> int:
        """How many replicas a service has."""
        ...

    def wait_for_news(self, name: str, replica: int, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        """Wait until a place differs from what was seen, or for so long."""
        ...


__all__ = ["Directory", "ReplicaLocation"]
