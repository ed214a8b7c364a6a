"""The interface by which callers find out where a service is.

    handle ──▶ client ──"where is learner 2?"──▶ Directory ──▶ ReplicaLocation(up, unix:/..., target 1)

The launcher has the directory of a program; this module only defines its interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReplicaLocation:
    """The location of a replica, as far as the directory knows it."""

    state: str
    """"up", "waiting" (it starts or restarts), "failed", "completed" or "stopped"."""
    address: str = ""
    target: int = 0
    token: str = ""
    """The token that this process presents there."""
    generation: int = 0
    cause: str = ""
    """The reason why it is not up, in one line; of one that is up again, why the process before it ended."""


class Directory(Protocol):
    """Knows where services are."""

    def find(self, name: str, replica: int) -> ReplicaLocation:
        """The location of a replica; if it is not known yet, asks and waits for the first answer."""
        ...

    def replicas(self, name: str) -> int:
        """The number of replicas of a service."""
        ...

    def wait_for_news(self, name: str, replica: int, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        """Wait until a location differs from `seen`, at most `timeout_s` seconds; return the current one."""
        ...


__all__ = ["Directory", "ReplicaLocation"]
