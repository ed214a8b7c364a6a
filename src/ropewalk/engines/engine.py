"""The interface of an engine: an existing cluster manager that places and ends agents.

An engine knows nothing of sockets or Python objects. Its calls are plain and blocking, made by one thread at a time and
never from a control loop; the job states that it reports only confirm a session's own observations. A new engine is
one file with one class, and one line in `ENGINES`; the conformance suite in `ropewalk.testing` then tests it. The class
says how one job is submitted, polls, cancels, finds and renders jobs, returns their logs, and checks what it needs.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import hashlib
import logging
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.errors import EngineError
from ropewalk.quantities import shown_duration

logger = logging.getLogger(__name__)


class Reach(enum.Enum):
    """How the launcher and the jobs of an engine connect."""

    HERE = "here"
    """Jobs run on this machine and see its files: sockets in the run folder, no network."""
    NETWORK = "network"
    """Jobs run on hosts with IP addresses: they dial the launcher, or the launcher dials them."""
    CARRIED = "carried"
    """Only the engine's own connection leads to a job: the launcher dials `Engine.door`."""


class JobState(enum.Enum):
    """The state of a job: PENDING -> RUNNING -> ENDED, or LOST when the engine has forgotten it."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job, as its engine reports it."""

    state: JobState
    exit_code: int | None = None
    """The exit status of an ended job; negative numbers are signals."""
    reason: str = ""
    """The engine's own explanation, if it has one (why the job is pending, why it was ended)."""
    hopeless: bool = False
    """Whether this job can never run as it is, nor one like it: its image does not exist, its node does not see the
    launcher's folder. For pending jobs, and for jobs that ended before they had begun."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: an agent and the share of a host that it may use."""

    command: Sequence[str]
    """The program and its arguments; never a shell line, never a secret."""
    name: str = "ropewalk-agent"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Set on top of the environment that the engine gives."""
    stdin: bytes = b""
    """Secrets and start-up facts, passed on the standard input or by the engine's own safe channel."""
    folder: str = ""
    """A private folder of this run, on this machine, for the job's own output; engines may use another place."""
    resources: Resources = field(default_factory=Resources)
    """The request of the whole job: the share of a host that its processes divide among themselves."""
    time_limit_s: float | None = None
    """Seconds after which the engine ends the job; None leaves it to the engine's own limit."""
    place: str = ""
    """The host on which the job has to run, one of `Engine.places`; empty leaves the choice to the engine."""
    away_from: Sequence[str] = ()
    """Jobs whose hosts may have been lost a short time ago: an engine that chooses hosts prefers other ones."""
    outlives: bool = False
    """Whether the job goes on without the process that submits it, as a submitted launcher does. The jobs of most
    engines do so in any case; those of `Reach.CARRIED` otherwise end with the connection."""
    door: bool = False
    """For `Reach.CARRIED`: whether the job listens at a unix socket that `Engine.door` leads to.

    The engine makes a folder on the job's host that only this user may enter, before any other process learns its name,
    and gives the job the path of the socket to make there in the variable `surroundings.DOOR_VARIABLE`."""


@dataclass(frozen=True, slots=True)
class HostSlots:
    """The hosts on which jobs run, for an engine that has a fixed set of hosts."""

    rooms: Mapping[str, HostCapacity]
    """The capacity of each host, busy or not, by its name."""
    words: str
    """A description of all hosts together, such as "the allocation 8812 (2 nodes with up to 3 CPUs)"."""
    advice: str
    """How a user gets more hosts; follows "ask for fewer processes,", such as "or for a larger allocation"."""


@dataclass(frozen=True, slots=True)
class EngineFinding:
    """One finding of a check, for `ropewalk doctor`."""

    what: str
    ok: bool
    detail: str


class Engine(abc.ABC):
    """Places, watches and ends jobs.

    An engine is made with its own options (see `engines.options`), which a user writes in a table of `ropewalk.toml`,
    with `ropewalk run --option`, or as `engine_options` of a session.
    """

    name: str
    reach: Reach = Reach.NETWORK
    python: str = sys.executable
    """The Python interpreter on the hosts of this engine; agents are started with it."""
    instead_of_time_limit: str = ""
    """What ends a run after a time where this engine ends no job at its `time_limit_s`; empty if it does."""

    _lock: threading.RLock
    """Held while jobs are submitted; the engine may hold it for other changes of its tables."""
    _requests: dict[tuple[str, str], list[str]]
    """The ids of the jobs of each request of this launcher, by run and request."""
    _is_limit_told: bool
    """Whether the user was told that this engine keeps no time limits."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the attributes of every engine, also of one whose `__init__` does not call this class's.

        Raises:
            TypeError: the class does not say how it submits jobs.
        """
        if (cls.submit, cls.submit_all, cls.submit_one) == (Engine.submit, Engine.submit_all, Engine.submit_one):
            raise TypeError(f"{cls.__name__} does not say how jobs are submitted: write submit_one(), or submit_all()")
        engine = super().__new__(cls)
        engine._lock = threading.RLock()
        engine._requests = {}
        engine._is_limit_told = False
        return engine

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        """Ask for `count` jobs and return their ids.

        Calling again with the same `run_id` and `request_id` returns the same ids and starts nothing. If one of the
        jobs cannot be submitted, the jobs before it are cancelled.

        Args:
            spec: the job; all jobs of the request are alike.
            count: the number of jobs.
            run_id: the run that the jobs belong to.
            request_id: the request, unique in its run.

        Returns:
            One id for each job, in order.

        Raises:
            EngineError: the engine refused, in its own words.
        """
        with self._lock:
            known = self._requests.get((run_id, request_id))
            if known is None:
                self._tell_of_time_limit(spec)
                known = self._submit_all_or_none(spec, count, run_id, request_id) if count else []
                self._requests[run_id, request_id] = known
            return list(known)

    def _tell_of_time_limit(self, spec: JobSpec) -> None:
        if spec.time_limit_s is not None and self.instead_of_time_limit and not self._is_limit_told:
            self._is_limit_told = True
            logger.warning(
                "the engine %r ends no job after its time limit of %s (time_limit_s, --time); %s",
                self.name,
                shown_duration(spec.time_limit_s),
                self.instead_of_time_limit,
            )

    def _submit_all_or_none(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        begun: list[str] = []
        try:
            for id in self.submit_all(spec, count, run_id, request_id):
                begun.append(id)  # one by one: these ids are known if a later job fails
        except BaseException:  # the caller has no ids to end these jobs by
            if begun:
                with contextlib.suppress(EngineError):  # the first error says more
                    self.cancel(begun)
            raise
        return begun

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> Iterable[str]:
        """Submit the jobs of a request that is new to this launcher, at least one, and yield their ids one by one.

        `submit` calls this, and cancels the jobs whose ids were yielded if it raises. Override it in an engine whose
        cluster takes many jobs at a time, or that finds requests of earlier launchers.

        Args:
            spec: the job; all jobs of the request are alike.
            count: the number of jobs, at least 1.
            run_id: the run that the jobs belong to.
            request_id: the request, unique in its run.

        Returns:
            The ids of the jobs, in order.

        Raises:
            EngineError: the engine refused, in its own words.
        """
        for number in range(count):
            yield self.submit_one(spec, run_id, request_id, number)

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        """Submit one job and return its id, which no other job of this engine has or had.

        Args:
            spec: the job.
            run_id: the run that the job belongs to; `find` and `runs` find the job by it.
            request_id: the request, unique in its run.
            number: the number of the job in the request, from 0.

        Returns:
            The id of the job.

        Raises:
            EngineError: the engine refused, in its own words.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job, in one call; an unknown id is LOST."""

    @abc.abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs at once; jobs that have ended and unknown ids are ignored. May be called twice."""

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        """Ask running jobs to end, by SIGTERM, if the engine can.

        This does not end the jobs, unless the engine insists after the grace period: `cancel` ends them.

        Args:
            ids: the jobs.
            grace_s: seconds that the jobs have to end.

        Returns:
            Whether the engine could ask.
        """
        return False

    def launcher_options(self, options: Mapping[str, object]) -> dict[str, object]:
        """Return the options, as they were given, that this engine needs in a launcher that is a job itself.

        Raises:
            EngineError: such a launcher could not use the engine; the message says which option it needs.
        """
        if self.reach is Reach.CARRIED:
            raise EngineError(
                f"the engine {self.name!r} ends its jobs with the connection that started them, so nothing that it "
                "starts outlives this command; log in there and submit with --engine local"
            )
        return dict(options)

    @abc.abstractmethod
    def find(self, run_id: str) -> list[str]:
        """Return the ids of all jobs of a run that have not ended, also those of an earlier launcher where possible."""

    @abc.abstractmethod
    def logs(self, id: str) -> str:
        """Return the last output of a job itself (not of the processes it hosts)."""

    @abc.abstractmethod
    def render(self, spec: JobSpec) -> str:
        """Return the request that would be sent, as text without secrets, and send nothing."""

    @abc.abstractmethod
    def check(self) -> list[EngineFinding]:
        """Check whether this engine can be used here, for `ropewalk doctor`."""

    def per_job(self, process: Resources) -> int | None:
        """Return the most processes of one size that one job can host.

        Args:
            process: the request of each process.

        Returns:
            The number of processes, or None if there is no limit: then a single job hosts all.

        Raises:
            EngineError: no host of this engine can hold even one process; the message has the largest host's capacity.
        """
        return None

    def most_jobs(self) -> int | None:
        """Return the most jobs that can ever run at the same time; None if the engine does not know."""
        return None

    def places(self) -> HostSlots | None:
        """Return the hosts on which jobs run, if they are fixed; None if the engine finds a host for every job.

        With fixed hosts, each job is sized for its `JobSpec.place`, and a request for more processes than the hosts
        have room for is refused before anything is submitted.

        Raises:
            EngineError: there are no hosts, or they are gone.
        """
        return None

    def room(self, id: str) -> HostCapacity | None:
        """Return the capacity of the host of a job that has the whole host; None for a job that has what it asked for.

        Where hosts are of different sizes, `per_job` fits the smallest one. Processes for which no further job can be
        had go to hosts with more room than that.
        """
        return None

    def hosts(self) -> list[str]:
        """Return the known IP addresses of hosts on which jobs may run, from which the launcher must be reachable.

        The session uses the address of the interface that leads to them, unless an address is advertised.
        """
        return []

    def door(self, id: str) -> str:
        """Return the unix socket on this machine whose connections end at the socket of a job, for `Reach.CARRIED`.

        Raises:
            EngineError: the engine's connection to the job is gone.
        """
        raise NotImplementedError(f"the engine {self.name!r} does not carry connections")

    def runs(self) -> dict[str, list[str]]:
        """Return the ids of all jobs of this user that have not ended, by run, found by name or label.

        Includes runs of launchers that are gone: `ropewalk doctor --leftovers` lists them, `ropewalk stop` ends them.
        """
        return {}

    def remains(self) -> dict[str, list[str]]:
        """Return what the engine still holds of this user's runs besides jobs, by run, such as "network x".

        These are containers and pods that have ended, with their credentials; networks; and files of jobs. They belong
        to launchers that were killed, or that are alive and will remove them. `ropewalk doctor --leftovers` lists them.
        """
        return {}

    def remove_remains(self, run_id: str) -> None:  # noqa: B027 - most engines have none
        """Remove everything that `remains` reports of a run; jobs are not ended."""

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Release what the engine itself holds; jobs are not ended. May be called twice."""


def short_request(request_id: str) -> str:
    """Return a name for the files and jobs of a request that every file system and cluster manager accepts."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:12]
