"""What an engine is: an existing cluster manager that places and ends agents.

An engine knows nothing of sockets or Python objects. Its calls are plain and
blocking, made by one thread at a time and never from a control loop; what it
says of states only confirms what a session sees by itself. A new engine is one
file with one class, and one line in `ENGINES`; the suite in `ropewalk.testing`
then proves it. It has to say how one job is submitted, and to poll, cancel, find
and render jobs, give their logs, and check what it needs.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.errors import EngineError

#: Where a job finds the path of the socket that it should listen at.
DOOR_VARIABLE = "ROPEWALK_DOOR"


class Reach(enum.Enum):
    """How the launcher and the jobs of an engine come together."""

    HERE = "here"
    """Jobs run on this machine and see its files: sockets in the run folder, no network."""
    NETWORK = "network"
    """Jobs run on hosts with IP addresses: they dial the launcher, or the launcher dials them."""
    CARRIED = "carried"
    """Only the engine's own connection leads to a job: the launcher dials `Engine.door`."""


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
    hopeless: bool = False
    """Of a job that is pending: it never runs as it is, such as one whose image does not exist."""


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
    """A private folder of this run, on this machine, for the job's own output; engines may have a better place."""
    resources: Resources = field(default_factory=Resources)
    """What the whole job asks for: the share of a host that its processes divide among themselves."""
    time_limit_s: float | None = None
    """The job is ended by the engine after this long; None leaves it to the engine's own limit."""
    place: str = ""
    """Of `Engine.places`: where the job has to run; empty leaves that to the engine."""
    door: bool = False
    """For `Reach.CARRIED`: whether the job listens at a unix socket that `Engine.door` leads to.

    The engine makes a folder on the job's host that only this user may enter, before anybody else hears of its name,
    and gives the job the path of the socket to make there in the variable `DOOR_VARIABLE`."""


@dataclass(frozen=True, slots=True)
class HostSlots:
    """The hosts on which jobs run, for an engine that has a fixed number of them and gives no others."""

    rooms: Mapping[str, HostCapacity]
    """What each of them has, busy or not, by its name."""
    words: str
    """What they are called together, such as "the allocation 8812 (2 nodes with up to 3 CPUs)"."""
    advice: str
    """How a user gets more, after "ask for fewer processes,": such as "or for a larger allocation"."""


@dataclass(frozen=True, slots=True)
class EngineFinding:
    """One line of a check, for `ropewalk doctor`."""

    what: str
    ok: bool
    detail: str


class Engine(abc.ABC):
    """Places, watches and ends jobs.

    Made with the engine's own options (see `engines.options`), which a user writes in a table of `ropewalk.toml`,
    with `ropewalk run --option`, or as `engine_options` of a session.
    """

    name: str
    reach: Reach = Reach.NETWORK
    #: The Python interpreter on the hosts of this engine; agents are started with it.
    python: str = sys.executable

    _lock: threading.RLock
    """Held while jobs are submitted; for what else the engine does with its tables."""
    _requests: dict[tuple[str, str], list[str]]
    """The ids of the jobs of each request that this launcher has made, by run and request."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make what every engine has, also those whose `__init__` does not call this class's.

        Raises:
            TypeError: the class does not say how it submits jobs.
        """
        if (cls.submit, cls.submit_all, cls.submit_one) == (Engine.submit, Engine.submit_all, Engine.submit_one):
            raise TypeError(f"{cls.__name__} does not say how jobs are submitted: write submit_one(), or submit_all()")
        engine = super().__new__(cls)
        engine._lock = threading.RLock()
        engine._requests = {}
        return engine

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        """Ask for `count` jobs and return their ids.

        Calling again with the same `run_id` and `request_id` returns the same ids and
        starts nothing. If one of the jobs cannot be submitted, those before it are cancelled.

        Raises:
            EngineError: the engine refused, in its own words.
        """
        with self._lock:
            known = self._requests.get((run_id, request_id))
            if known is None:
                known = self._submit_all_or_none(spec, count, run_id, request_id) if count else []
                self._requests[run_id, request_id] = known
            return list(known)

    def _submit_all_or_none(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        begun: list[str] = []
        try:
            for id in self.submit_all(spec, count, run_id, request_id):
                begun.append(id)  # one by one: these are known if a later one fails
        except BaseException:  # the caller has no id to end these by
            if begun:
                with contextlib.suppress(EngineError):  # the first error says more
                    self.cancel(begun)
            raise
        return begun

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> Iterable[str]:
        """Submit the jobs of a request that is new to this launcher, at least one, and give their ids one by one.

        `submit` calls this, and cancels the jobs whose ids were given if it raises. An engine whose cluster takes many
        jobs at a time, or knows of requests of launchers that are gone, has its own.

        Raises:
            EngineError: the engine refused, in its own words.
        """
        for number in range(count):
            yield self.submit_one(spec, run_id, request_id, number)

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        """Submit one job and return its id, which no other job of this engine has or had.

        Args:
            spec: what to run.
            run_id: names the run that the job belongs to; `find` and `runs` know the job by it.
            request_id: names the request of this run.
            number: of the job in the request, from 0.

        Raises:
            EngineError: the engine refused, in its own words.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        """The states of jobs, in one call; an unknown id is LOST."""

    @abc.abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs at once; ids that have ended or are unknown are ignored. May be called twice."""

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        """Let jobs that run know by SIGTERM that they are to end, where the engine can; returns whether it could.

        They are not ended by it unless the engine insists after the grace: `cancel` does that.
        """
        return False

    def launcher_options(self, options: Mapping[str, object]) -> dict[str, object]:
        """The options, as they were given, that this engine needs in a launcher which is a job of its own.

        Raises:
            EngineError: such a launcher could not use the engine; says what to give it.
        """
        return dict(options)

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
    def check(self) -> list[EngineFinding]:
        """What stands in the way of using this engine here, for `ropewalk doctor`."""

    def per_job(self, process: Resources) -> int | None:
        """How many processes that each ask for `process` one job can host at most.

        None means as many as one likes: a single job hosts them all.

        Raises:
            EngineError: no host of this engine can hold even one; says what the largest has.
        """
        return None

    def most_jobs(self) -> int | None:
        """How many jobs can ever run at the same time, if the engine knows (a list of hosts does)."""
        return None

    def places(self) -> HostSlots | None:
        """The hosts on which jobs run, if they are fixed; None if the engine finds some for every job.

        Jobs are then made to measure, each with its `JobSpec.place`, and more processes than there is room for are
        refused before anything is submitted.

        Raises:
            EngineError: there are none, or no longer.
        """
        return None

    def hosts(self) -> list[str]:
        """IP addresses of hosts on which jobs may run, as far as known: the launcher is reached from there.

        The session takes the interface that leads to them as its own address, unless one is advertised.
        """
        return []

    def door(self, id: str) -> str:
        """For `Reach.CARRIED`: the unix socket on this machine whose connections end at the one of a job.

        Raises:
            EngineError: the engine's connection to the job is gone.
        """
        raise NotImplementedError(f"the engine {self.name!r} does not carry connections")

    def runs(self) -> dict[str, list[str]]:
        """The runs of this user that have jobs which have not ended, with their ids, found by name or label.

        Also those of launchers that are gone: `ropewalk doctor --leftovers` lists them and `ropewalk stop` ends them.
        """
        return {}

    def remains(self) -> dict[str, list[str]]:
        """What the engine still holds of this user's runs besides jobs: by run, in words such as "network x".

        Containers and pods that have ended, with their credentials; networks; files of jobs. They belong to launchers
        that were killed, or to some that live and will remove them. `ropewalk doctor --leftovers` lists them.
        """
        return {}

    def remove_remains(self, run_id: str) -> None:  # noqa: B027 - most engines have none
        """Remove all that `remains` tells of a run. Jobs are not ended by it."""

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Give back what the engine itself holds; jobs are not ended by it. May be called twice."""
