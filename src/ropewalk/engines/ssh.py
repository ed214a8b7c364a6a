"""The ssh engine: starts jobs over OpenSSH on the hosts of a list. Only port 22 is needed.

    launcher ── unix socket = door(id) ──┐                              ┌── unix socket = DOOR_VARIABLE ── agent
    engine ──── orders, news ────────────┴── ssh ══ port 22 ══ sshd ────┴── keeper ── starts and ends ──┘

There is one `ssh` for each host, for any number of jobs and doors, and one keeper at its other end (`keeper`), which
ends every job when the connection ends or falls silent. So jobs do not outlive their launcher, and nothing is left on
a host. Only a launcher that is submitted goes on, with a keeper of its own (`ssh_launcher`).

A job goes to the host with the fewest jobs that can hold it, if there is one. A host that cannot be reached, cannot
start a job or was lost is skipped for `_AVOIDED_S`, so that other hosts can take its jobs; that is an error only if no
host is left.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import logging
import math
import os
import re
import secrets
import shlex
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ropewalk.engines import keeper, ssh_checks, ssh_command, ssh_connection, ssh_launcher
from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.engines.ssh_command import AT_ONCE, Host, SshOptions
from ropewalk.engines.ssh_connection import HostUnfit, SshConnection
from ropewalk.errors import EngineError, FileNotTrusted
from ropewalk.quantities import shown_size
from ropewalk.trusted_files import check_trusted

logger = logging.getLogger(__name__)

_END_S = 5.0
"""A killed job is reported within this time, unless its host is out of reach; then `poll` reports it later."""
_NAME = re.compile(rf"{re.escape(keeper.MARK)}[\w-]+")
"""The name of a job, which follows that of its host in its id."""
_AVOIDED_S = 30.0
"""A host that was lost is tried again after this time. Trying takes up to `connect_timeout`."""


@dataclass(slots=True)
class _SshJob:
    connection: SshConnection
    name: str
    run_id: str
    spec: JobSpec
    socket: str = ""
    """The path on its host at which it listens, as reported by the keeper, which has made the folder."""
    door: str = ""
    log: str = ""

    @property
    def is_alive(self) -> bool:
        return not self.connection.gone and self.name not in self.connection.endings

    def shut_door(self) -> None:
        if self.door:
            self.connection.shut_door(self.name, self.socket)
            self.door = ""


class SshEngine(Engine):
    """Starts jobs on the hosts of a list; see `ssh_command.SshOptions` for the options."""

    name = "ssh"
    reach = Reach.CARRIED

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self._options = read_options(self.name, SshOptions, options or {})
        if self._options.config_file:
            _check_config(self._options.config_file)
        self.python = self._options.interpreter
        self._hosts = {entry: Host.parse(entry) for entry in self._options.hosts}
        launcher = self._options.launcher_host
        self._known = {**self._hosts, launcher: Host.parse(launcher)}
        self._connections: dict[str, SshConnection] = {}
        self._told: set[str] = set()
        """Hosts of which the user knows that they cannot be used."""
        self._lost_at: dict[str, float] = {}
        self._jobs: dict[str, _SshJob] = {}
        self._outputs: dict[str, ssh_launcher.LauncherOutput] = {}
        """The outputs of submitted launchers that were asked for."""
        self._closed = False

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> Iterable[str]:
        self._closed = False
        if spec.outlives:
            entry = self._options.launcher_host
            name = ssh_launcher.start(lambda: self._connected(entry), spec, run_id, request_id)
            yield f"{entry}/{name}"
            return
        left = count
        unfit: dict[str, str] = {}
        while left > 0:
            started = self._start(spec, left, run_id, unfit)
            left -= len(started)
            yield from started

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        states = {id: self._status(id) for id in ids}
        self._close_idle()
        return states

    def cancel(self, ids: Sequence[str]) -> None:
        for connection, name in map(self._launcher_of, filter(ssh_launcher.is_launcher, ids)):
            ssh_launcher.end(connection, name)
        ids = [id for id in ids if not ssh_launcher.is_launcher(id)]
        jobs = [job for id in ids if (job := self._jobs.get(id)) and job.is_alive]
        for job in jobs:
            job.connection.tell("end", job=job.name)
        deadline = time.monotonic() + _END_S
        for job in jobs:
            is_there = job.connection.silent_s < self._options.server_alive_interval
            job.connection.wait_for_end(job.name, max(0.0, deadline - time.monotonic()) if is_there else 0.0)
            job.shut_door()
        for id in ids:
            if not ((job := self._jobs.get(id)) and (job.is_alive or job.name in job.connection.endings)):
                self._kill_found(id)
        self._close_idle()

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        launchers = [self._launcher_of(id) for id in ids if ssh_launcher.is_launcher(id)]
        for connection, name in launchers:
            connection.ask("signal", job=name)
        return len(launchers) == len(ids)

    def launcher_options(self, options: Mapping[str, object]) -> dict[str, object]:
        # Explicitly empty, because the file of settings that goes there may name those of this machine.
        there = {**options, "config_file": self._options.launcher_config_file, "identity_file": ""}
        entry = self._options.launcher_host
        ssh_launcher.check(self._connected(entry), there, self._options, logger)
        return there

    def find(self, run_id: str) -> list[str]:
        is_ours = any(run == run_id for run, _ in self._requests)  # if so, hosts that got no job have none of it
        return self._runs(self._connections if is_ours else self._known).get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        return self._runs(self._known)

    def _runs(self, entries: Iterable[str]) -> dict[str, list[str]]:
        alive: dict[str, list[str]] = {}
        for id, job in self._jobs.items():
            if job.is_alive:
                alive.setdefault(job.run_id, []).append(id)
        self._connect(entry for entry in entries if not self._is_avoided(entry))
        for entry, connection in self._connections.items():
            for name, run_id in _marked(connection).items() if not self._is_doubtful(connection) else ():
                id = f"{entry}/{name}"
                if id not in self._jobs or self._jobs[id].connection.gone:
                    alive.setdefault(run_id, []).append(id)
        self._close_idle()
        return alive

    def logs(self, id: str) -> str:
        if ssh_launcher.is_launcher(id):
            return self._outputs.setdefault(id, ssh_launcher.LauncherOutput()).read(*self._launcher_of(id))
        job = self._jobs.get(id)
        if job is None:
            return ""
        if job.is_alive:
            with contextlib.suppress(EngineError):  # then only the last answer is known
                job.log = str(job.connection.ask("log", job=job.name)) or job.log
        ending = job.connection.endings.get(job.name)
        return ending.log if ending else job.log

    def render(self, spec: JobSpec) -> str:
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())]
        lines = [shlex.join(ssh_command.connection(host, self._options, "…")) for host in self._hosts.values()]
        return "\n".join(
            [
                "# One connection to each host that gets a job; their standard input brings the keeper, which starts:",
                *lines,
                " ".join([*settings, shlex.join(spec.command)]),
                *(["# Carried to it: connections to a socket in a folder that the keeper makes"] if spec.door else []),
            ]
        )

    def check(self) -> list[EngineFinding]:
        return [ssh_checks.client(), *itertools.chain.from_iterable(self.check_hosts().values())]

    def check_hosts(self) -> dict[str, list[EngineFinding]]:
        """Return the findings on each host, by its entry."""
        failures = self._connect(self._hosts)
        there = {entry: self._connections[entry] for entry in self._hosts if entry not in failures}
        findings = {entry: [EngineFinding(f"host {entry}", False, why)] for entry, why in failures.items()}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ropewalk-ssh-check") as threads:
            findings.update(zip(there, threads.map(ssh_checks.of_host, there.values()), strict=True))
        self._close_idle()
        return findings

    def per_job(self, process: Resources) -> int:
        failures = self._connect(entry for entry in self._hosts if not self._is_avoided(entry))
        if failures and all(connection.gone for connection in self._connections.values()):
            raise EngineError("\n".join(failures.values()))
        rooms = [_room(connection, process) for connection in self._connections.values() if not connection.gone]
        if not any(rooms):
            largest = ", ".join(_describe(connection) for connection in self._connections.values())
            raise EngineError(f"no host can hold a process of {process}; there are: {largest or 'none'}")
        return min(room for room in rooms if room)

    def most_jobs(self) -> int:
        return len(self._hosts)

    def room(self, id: str) -> HostCapacity | None:
        job = self._jobs.get(id)
        if job is None:
            return None
        facts = job.connection.facts
        is_alone = sum(each.connection is job.connection and each.is_alive for each in self._jobs.values()) == 1
        return HostCapacity(facts["cpus"], facts["gpus"], facts["memory"]) if is_alone else None

    def door(self, id: str) -> str:
        job = self._jobs.get(id)
        if job is None or not job.spec.door:
            raise EngineError(f"the job {id} has no door" if job else f"there is no job {id} of this engine")
        if job.connection.gone:
            raise EngineError(job.connection.gone)
        with job.connection.doors:
            if not job.door:
                ssh_checks.require_forwarding(job.connection)
                job.door = job.connection.open_door(job.name, job.socket)
            return job.door

    def close(self) -> None:
        """Close the connections without jobs; the others are closed when their jobs have ended."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        if self._closed:
            busy = {id(job.connection) for job in self._jobs.values() if job.is_alive}
            idle = [entry for entry, connection in self._connections.items() if id(connection) not in busy]
            for entry in idle:
                self._connections[entry].hang_up()
            for entry in idle:
                self._connections.pop(entry).close()

    def _status(self, id: str) -> JobStatus:
        if ssh_launcher.is_launcher(id):
            return ssh_launcher.status(*self._launcher_of(id))
        job = self._jobs.get(id)
        if job is None:
            return self._status_of_found(id)
        connection = job.connection
        gone = connection.gone  # read first: the ends of jobs before it are known by then
        if ending := connection.endings.get(job.name):
            job.shut_door()
            return JobStatus(JobState.ENDED, ending.code, ending.reason)
        if gone:
            return JobStatus(JobState.LOST, reason=gone)
        silent_s = connection.silent_s
        is_silent = silent_s > self._options.server_alive_interval
        return JobStatus(
            JobState.RUNNING,
            reason=f"nothing heard from {connection.host.entry} for {silent_s:.1f} s" if is_silent else "",
        )

    def _status_of_found(self, id: str) -> JobStatus:
        """Return the state of a job that another launcher started; its exit code is not known here."""
        connection, name = self._host_of_found(id)
        if connection and name in _marked(connection):
            return JobStatus(JobState.RUNNING, reason="another launcher started it")
        return JobStatus(JobState.LOST, reason="this launcher has not started it, and it does not run")

    def _kill_found(self, id: str) -> None:
        """End a job of another launcher, or of a lost connection, whose keeper ends it too, but perhaps later."""
        connection, name = self._host_of_found(id)
        if connection:
            connection.ask("kill", job=name)

    def _host_of_found(self, id: str) -> tuple[SshConnection | None, str]:
        """Return a connection to the host of a job, if it can be reached, and the name of the job there."""
        entry, _, name = id.rpartition("/")
        is_there = name.startswith(keeper.MARK) and entry in self._hosts and not self._is_avoided(entry)
        return (self._connections[entry] if is_there and not self._connect([entry]) else None), name

    def _launcher_of(self, id: str) -> tuple[SshConnection, str]:
        """Return a connection to the host of a submitted launcher, and the name of its job there.

        Raises:
            EngineError: the host cannot be reached.
        """
        entry, _, name = id.rpartition("/")
        self._known.setdefault(entry, Host.parse(entry))
        return self._connected(entry), name

    def _connected(self, entry: str) -> SshConnection:
        """Return a connection to a host.

        Raises:
            EngineError: the host cannot be reached.
        """
        if failures := self._connect([entry]):
            raise EngineError(failures[entry])
        return self._connections[entry]

    # Placing

    def _start(self, spec: JobSpec, count: int, run_id: str, unfit: dict[str, str]) -> list[str]:
        """Start up to `count` jobs; fewer if a host is lost meanwhile, or cannot start a job.

        Args:
            spec: what to start.
            count: how many.
            run_id: the run of the jobs.
            unfit: hosts that cannot start this job, with the reasons; those that cannot now are added.
        """
        started: list[tuple[str, int]] = []
        for connection in self._places(spec.resources, count, unfit):
            name = keeper.MARK + secrets.token_hex(8)
            id = f"{connection.host.entry}/{name}"
            self._jobs[id] = _SshJob(connection, name, run_id, spec)
            number = connection.order(
                "start",
                job=name,
                run=run_id,
                command=list(spec.command),
                environment=dict(spec.environment),
                door=spec.door,
                stdin=base64.b64encode(spec.stdin).decode(),
                time_limit_s=spec.time_limit_s,
            )
            started.append((id, number))
        ids: list[str] = []
        refusal: EngineError | None = None
        for id, number in started:
            connection = self._jobs[id].connection
            try:
                answer = connection.answer(number)
                self._jobs[id].socket = connection.socket_of(answer) if spec.door else ""
                ids.append(id)
            except EngineError as error:
                del self._jobs[id]
                connection.tell("end", job=id.rpartition("/")[2])  # in case the first order arrived
                if isinstance(error, HostUnfit):
                    unfit[connection.host.entry] = str(error)
                elif not self._is_doubtful(connection):
                    refusal = error
                    continue
                self._lost_at[connection.host.entry] = time.monotonic()
        if len(unfit) < len(self._hosts):
            self._tell_of(unfit)
        if refusal:
            self.cancel(ids)
            raise refusal
        return ids

    def _places(self, resources: Resources, count: int, unfit: Mapping[str, str]) -> list[SshConnection]:
        failures = dict(unfit)
        while True:
            chosen = self._choose(resources, count, failures)
            # If no other host is left, all lost hosts are tried at once: each may take up to `connect_timeout`.
            failures |= self._connect(self._hosts if all(map(self._is_avoided, self._hosts)) else chosen)
            if failures.keys().isdisjoint(chosen):
                return [self._connections[entry] for entry in chosen]
            if len(failures) == len(self._hosts):
                raise EngineError("\n".join(failures.values()))

    def _choose(self, resources: Resources, count: int, failed: Container[str]) -> list[str]:
        """Choose a host for each of `count` jobs; hosts that failed are used only if no other host is left."""
        loads = dict.fromkeys(self._hosts, 0)
        for job in self._jobs.values():
            loads[job.connection.host.entry] += job.is_alive

        def unfitness(entry: str) -> tuple[bool, bool, bool, int]:
            connection = self._connections.get(entry)
            is_lost = self._is_avoided(entry)
            if connection is None or connection.gone:
                return entry in failed, is_lost, False, loads[entry]
            return (
                entry in failed,
                is_lost or self._is_doubtful(connection),
                not _room(connection, resources),
                loads[entry],
            )

        chosen: list[str] = []
        for _ in range(count):
            chosen.append(best := min(loads, key=unfitness))
            loads[best] += 1
        return chosen

    def _is_doubtful(self, connection: SshConnection) -> bool:
        return bool(connection.gone) or connection.silent_s > self._options.server_alive_interval

    def _is_avoided(self, entry: str) -> bool:
        """Return whether a host was lost within `_AVOIDED_S`, so that connecting may take long."""
        connection = self._connections.get(entry)
        lost_at = max(self._lost_at.get(entry, -math.inf), connection.gone_at if connection else -math.inf)
        return time.monotonic() - lost_at < _AVOIDED_S

    def _connect(self, entries: Iterable[str]) -> dict[str, str]:
        """Connect to the hosts that have no connection yet; returns the reasons of failures, by host."""

        def connect(entry: str) -> SshConnection | EngineError:
            try:
                return ssh_connection.connect(self._known[entry], self._options)
            except EngineError as error:
                return error

        missing = [
            entry
            for entry in dict.fromkeys(entries)
            if (connection := self._connections.get(entry)) is None or connection.gone
        ]
        failures: dict[str, str] = {}
        if missing:
            try:
                with ThreadPoolExecutor(min(AT_ONCE, len(missing)), "ropewalk-ssh-connect") as threads:
                    outcomes = list(threads.map(connect, missing))
            except RuntimeError as error:
                # The interpreter is ending, and starts no threads. On hosts that were lost, keepers end what ran there.
                return {entry: f"{entry} cannot be connected to now: {error}" for entry in missing}
            for entry, outcome in zip(missing, outcomes, strict=True):
                if isinstance(outcome, SshConnection):
                    self._connections[entry] = outcome
                    self._lost_at.pop(entry, None)
                else:
                    failures[entry] = str(outcome)
                    self._lost_at[entry] = time.monotonic()
            self._tell_of(failures)
        return failures

    def _tell_of(self, failures: Mapping[str, str]) -> None:
        """Log why hosts are not used, once for each, unless no host is left, which is an error."""
        if any(not connection.gone for connection in self._connections.values()):
            for entry in failures.keys() - self._told:
                logger.warning("continuing without the host %s: %s", entry, failures[entry])
            self._told |= failures.keys()


def _room(connection: SshConnection, process: Resources) -> int:
    """Return how many processes with this request the host can hold."""
    facts = connection.facts
    return HostCapacity(facts["cpus"], facts["gpus"], facts["memory"]).holds(process)


def _marked(connection: SshConnection) -> dict[str, str]:
    """Return the runs of all jobs on the host, by job, of any launcher; none if the connection breaks."""
    with contextlib.suppress(EngineError, TypeError, ValueError):  # of an answer that is none
        found = {str(name): str(run_id) for run_id, name in connection.ask("find")}
        return {name: run_id for name, run_id in found.items() if _NAME.fullmatch(name)}
    return {}


def _describe(connection: SshConnection) -> str:
    facts = connection.facts
    return f"{connection.host.entry} with {facts['cpus']} CPUs, {facts['gpus']} GPUs and {shown_size(facts['memory'])}"


def _check_config(file: str) -> None:
    """Refuse a configuration that other users could have written: it may name commands to run here.

    OpenSSH checks the owner of ~/.ssh/config, but not of a configuration that is passed to it.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # ssh reports it
        try:
            check_trusted(os.path.expanduser(file))
        except FileNotTrusted as error:
            raise EngineError(f"the option config_file: {error}") from error
