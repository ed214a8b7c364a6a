"""What an engine is: an existing cluster manager that places and ends agents.

An engine knows nothing of sockets or Python objects. Its calls are plain and
blocking, made from one thread per engine and never from a control loop; what it
says of states only confirms what a session sees by itself. A new engine is one
file with one class, and one line in `ENGINES`; the suite in `ropewalk.testing`
then proves it.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ropewalk.engines.resources import Resources


class JobState(enum.Enum):
    """Where a job stands. PENDING -> RUNNING -> ENDED, or LOST when the engine has forgotten it."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What an engine knows of a job."""

    state: JobState
    exit_code: int | None = None
    """The exit status once ended; negative numbers are signals."""
    reason: str = ""
    """The engine's own words, if it has any (why it is pending, why it was ended)."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: an agent and the share of a host that it may use."""

    command: Sequence[str]
    """The program and its arguments; never a shell line, never a secret."""
    name: str = "ropewalk-agent"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Set on top of the environment that the engine gives."""
    stdin: bytes = b""
    """Secrets and start-up facts: handed over on the standard input or the engine's own safe channel."""
    folder: str = ""
    """A private folder of this run for the job's own output; empty where the engine has its own place."""
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check, for `ropewalk doctor`."""

    what: str
    ok: bool
    detail: str


class Engine(abc.ABC):
    """Places, watches and ends jobs."""

    name: str

    @abc.abstractmethod
    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        """Ask for `count` jobs and return their ids.

        Calling again with the same `run_id` and `request_id` returns the same ids and
        starts nothing.

        Raises:
            EngineError: the engine refused, in its own words.
        """

    @abc.abstractmethod
    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """The states of jobs, in one call; an unknown id is LOST."""

    @abc.abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs at once; ids that have ended or are unknown are ignored. May be called twice."""

    @abc.abstractmethod
    def find(self, run_id: str) -> list[str]:
        """The ids of all jobs of a run that have not ended, also those of an earlier launcher where possible."""

    @abc.abstractmethod
    def logs(self, id: str) -> str:
        """The last output of a job itself (not of the processes it hosts)."""

    @abc.abstractmethod
    def render(self, spec: JobSpec) -> str:
        """What would be sent, as text, without sending it; holds no secret."""

    @abc.abstractmethod
    def check(self) -> list[Finding]:
        """What stands in the way of using this engine here, for `ropewalk doctor`."""

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Give back what the engine itself holds; jobs are not ended by it. May be called twice."""
