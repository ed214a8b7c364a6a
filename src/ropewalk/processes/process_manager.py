"""The processes of a session: started, watched to their ends, and reported to the owners that asked for them.

owner ──start──▶ ProcessManager ──▶ Placement ──▶ agent ──StartProcess──▶ process
  ▲                    │  ▲                         │                        │
  └── on_link, on_message, on_exited, ... ◀─────────┴──── Started, Exited, TaskReport; the link of the process
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ropewalk import injection
from ropewalk.engines.resources import Resources
from ropewalk.errors import LinkClosed, StartFailed
from ropewalk.escaping import escaped
from ropewalk.processes import bootstrap, environment
from ropewalk.processes.agent_record import AgentRecord, Home
from ropewalk.processes.deaths import record_of
from ropewalk.processes.fleet import Fleet, default_resources
from ropewalk.processes.given_run import run_to_give, tell_of_death
from ropewalk.processes.joined import JoinedAgent
from ropewalk.processes.managed_process import ManagedProcess
from ropewalk.processes.messages import (
    Certificate,
    Draining,
    Exited,
    NotStarted,
    Peek,
    Recall,
    Sample,
    Samples,
    SetRequest,
    SignalProcess,
    Started,
    StartProcess,
    TaskReport,
)
from ropewalk.processes.owner import Owner, ProcessSpec, gone_with_agent
from ropewalk.processes.placement import Placement
from ropewalk.processes.record_relay import RecordRelay
from ropewalk.processes.retirements import Retirements
from ropewalk.surroundings import import_path, sendable, working_folder
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.kernel import what_to_raise
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.main_namespace import is_importing

if TYPE_CHECKING:  # only a run of several hosts imports it
    from ropewalk.processes.code_bundle import CodeBundle

if TYPE_CHECKING:  # only a run of several hosts imports it
    from ropewalk.processes.code_sender import CodeSender  # which reaches processes through the blobs

logger = logging.getLogger(__name__)

_SILENT_S, _LEAVING_S = 2.0, 60.0
"""Timeouts in seconds after which a process whose link has closed but which does not die is ended; the second one
applies if it has announced its end."""
_LAST_WORDS_S = 3.0
"""The last messages of a process on another host travel apart from the news of its end, and may come this much later
(seconds): TCP retransmits lost packets after 0.2 s, 0.6 s, 1.4 s, and a link that stays silent for longer is one of
a lost host."""


class Beginning(msgspec.Struct, frozen=True):
    """What every process of a session begins with."""

    id_end: str = ""
    """Suffix of the ids of all processes that a session inside of a process starts.

    It tells the launcher their host.
    """
    variables: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The variables of the program at its beginning, in a run of several hosts."""
    code: CodeBundle | None = None
    """The project's files, for other hosts."""


class ProcessManager:
    """The processes that the owners of one session have asked for.

    Args:
        home: of the launcher, or of the process that has joined a session.
        loop: loop of the session; owners are called on its thread.
        members: the processes that may connect in the run.
        retirements: is told of processes that are gone.
        records: takes the records of the processes, if anyone here listens to it.
        beginning: what processes begin with.
    """

    def __init__(
        self,
        home: Home,
        loop: Loop,
        members: AllowList,
        retirements: Retirements,
        records: RecordRelay,
        beginning: Beginning,
    ) -> None:
        self.failure: Exception | None = None
        """Why there are no processes any more, from the moment in which the owners are told."""
        self.loop: Loop = loop
        self._home = home
        self._members = members
        self._retirements = retirements
        self._records = records
        self._beginning = beginning
        self._lock = threading.RLock()
        self._processes: dict[str, ManagedProcess] = {}
        self._owners: weakref.WeakSet[Owner] = weakref.WeakSet()
        """All owners that asked for processes, also those that have none now: they may be about to ask again."""
        self._fleet: Fleet | JoinedAgent
        self._placement: Placement
        self._code_sender: CodeSender | None = None
        self._last_variables: Mapping[str, str] = {}

    def use(self, fleet: Fleet | JoinedAgent, code_sender: CodeSender | None = None) -> None:
        """Set the fleet on which processes are placed; called once, before any is asked for.

        Args:
            fleet: the fleet.
            code_sender: sends the project's files to the agents that need them.
        """
        self._fleet = fleet
        self._code_sender = code_sender
        self._placement = Placement(self._processes, fleet, self.loop, self._begin, self._not_started)

    def __len__(self) -> int:
        return len(self._processes)

    def ids(self) -> list[str]:
        """Return the ids of all processes that were asked for and have not ended, oldest first; from any thread."""
        return list(self._processes)

    # The owners' side: any thread

    def add_owner(self, owner: Owner) -> None:
        """Register an owner, which is told when there can be no processes any more."""
        with self._lock:
            self._owners.add(owner)

    def check(self) -> None:
        """Raise `StartFailed` if there can be no processes any more."""
        if self.failure:
            raise StartFailed(f"this session starts no more processes: {self.failure}") from self.failure

    def start(self, spec: ProcessSpec, owner: Owner) -> str:
        """Ask for a process; returns its id at once. The owner is told what becomes of it.

        Raises:
            StartFailed: the session was closed, or none of its agents stays up.
            RuntimeError: this process is importing the script of another one.
        """
        if is_importing():
            raise RuntimeError(
                f"{spec.name} was to be started while this process imports the script of the one that started it; that "
                "would begin its work again: put the code that starts processes and pools under "
                "`if __name__ == '__main__':`"
            )
        # Unique at the agent: sessions of several processes may share it, and their pools may have the same names.
        id = f"{spec.name}#{os.getpid()}-{next(_numbers)}{self._beginning.id_end}"
        credentials = Credentials.create(self._home.run_id, id)
        certificate = self._home.issue(id) if self._home.issue else None
        process = ManagedProcess(spec, owner, credentials, {}, certificate, run=spec.run or run_to_give())
        with self._lock:
            self.check()
            self._members.admit(id, credentials.secret, certificate.fingerprint if certificate else None)
            self._owners.add(owner)
            process.environment = self._variables(spec)
            self._processes[id] = process
        self._placement.ask(id, process)
        return id

    @contextlib.contextmanager
    def asking(self) -> Generator[None]:
        """Ask for several processes within this block: agents are asked for after it, for all of them together."""
        self.loop.call_soon(self._placement.hold)
        try:
            yield
        finally:  # on the loop, after what was asked for
            self.loop.call_soon(self._placement.go_on)

    def signal(self, id: str, number: int) -> None:
        """Send a signal to a process; SIGKILL also ends all that it started, and withdraws a process without a host."""
        process = self._processes.get(id)
        if process:
            process.was_signalled = True
        self._tell_agent_of(id, SignalProcess(id, number))
        if process and number == signal.SIGKILL and not process.pid:
            self.loop.call_soon(lambda: self._kill(id))  # which may be placing it: its agent does not know it yet

    def takes_leave(self, id: str) -> None:
        """Note that a process has announced its end: its exit handlers and last threads get time.

        To be called from the loop's thread.
        """
        process = self._processes.get(id)
        if process:
            process.has_taken_leave = True

    def leaves(self, id: str) -> None:
        """Note that a process will end when its work is done: it no longer counts as asked for.

        What is asked for from then on may take its place.
        """
        self._placement.leaves(id)

    def withdraw(self, id: str) -> None:
        """Withdraw the request for a process that has no host yet; its owner is told of its end.

        Has no effect on others.
        """
        self.loop.call_soon(lambda: self._withdraw(id))

    def recall(self, id: str, until: int, *, everything: bool = False) -> None:
        """Take back tasks before `until` that have not started, half of them or all; see `Owner.on_report`."""
        self._tell_agent_of(id, Recall(id, until, everything))

    def request(self, id: str, word: int) -> None:
        """Write a word into the task page of a process, at `page.REQUEST`; the last word counts.

        A process that is not yet placed finds the word when it begins.

        Args:
            id: the process.
            word: what is asked of it, as its entry function understands it; 0 if nothing is.
        """
        self.loop.call_soon(lambda: self._request(id, word))

    def peek(self, id: str) -> None:
        """Ask what a process is doing and has finished; see `Owner.on_report`."""
        self._tell_agent_of(id, Peek(id))

    def retire(self, id: str) -> None:
        """Refuse a process from now on and end it: none of its later messages is handled."""
        self._members.retire(id)
        process = self._processes.get(id)
        if process:
            self._retirements.note(id, process.certificate, is_cut=True)
        self.signal(id, signal.SIGKILL)
        self.loop.call_soon(lambda: self._unlink(id))

    # Facts about a process: any thread

    def spec_of(self, id: str) -> ProcessSpec | None:
        """Return the request for a process; None if the process is not known."""
        process = self._processes.get(id)
        return process.spec if process else None

    def known(self, id: str) -> ManagedProcess | None:
        """Return the record of a process; None if the process is not known, or not any more."""
        return self._processes.get(id)

    def hosted(self, id: str) -> tuple[AgentRecord, Owner] | None:
        """Return the agent of a process, and its owner; None before it has one."""
        process = self._processes.get(id)
        return (process.agent, process.owner) if process and process.agent else None

    def pid_of(self, id: str) -> int:
        """Return the process id of a process on its host; 0 before it is known."""
        process = self._processes.get(id)
        return process.pid if process else 0

    def fingerprint_of(self, id: str) -> str:
        """Return the fingerprint of a process's certificate; empty if it has none."""
        process = self._processes.get(id)
        return process.certificate.fingerprint if process and process.certificate else ""

    def host_of(self, id: str) -> str:
        """Return the host of a process; empty before it is known."""
        process = self._processes.get(id)
        return process.agent.host if process and process.agent else ""

    def round_trip_of(self, id: str) -> float:
        """Return the round-trip time to the host of a process, in seconds; 0 on this host."""
        process = self._processes.get(id)
        return process.agent.round_trip_s if process and process.agent else 0.0

    def agent_of(self, id: str) -> str:
        """Return the agent that hosts a process; empty before there is one."""
        process = self._processes.get(id)
        return process.agent.id if process and process.agent else ""

    def is_leaving(self, id: str) -> bool:
        """Return whether the host of a process is about to be taken away, or is given back."""
        process = self._processes.get(id)
        return bool(process and process.agent and process.agent.draining)

    def sample_of(self, id: str) -> Sample | None:
        """Return the resource use of a process when it was last sampled."""
        process = self._processes.get(id)
        return process.sample if process else None

    def silence_of(self, id: str) -> float:
        """Return the seconds since a process was last sampled; 0 before it was."""
        process = self._processes.get(id)
        return time.monotonic() - process.sampled_at if process and process.sampled_at else 0.0

    def per_agent(self, resources: Resources) -> int:
        """Return how many processes that ask for this come and go together, because they fill a whole agent."""
        return self._fleet.per_agent(resources)

    # Events: the loop's thread

    def any_agent(self) -> AgentRecord | None:
        """Return an agent that is up, preferably the first one; if there is none, one is asked for."""
        for agent in list(self._fleet.agents.values()):  # threads that submit agents add to it
            if agent.up:
                return agent
        self._fleet.want([default_resources(self._home.settings)])
        return None

    def place_waiting(self) -> None:
        """Place waiting processes: there may be room now."""
        self._placement.place_waiting()

    def linked(self, id: str, link: Link) -> None:
        """Handle the link of a process that has connected."""
        process = self._processes.get(id)
        if process is None or self.failure:  # its owner has been told that there are no processes any more
            link.close()
            return
        process.link = link
        link.relabel(process.spec.codec, link.limits)
        self.loop.add_link(
            link,
            lambda received: process.owner.on_message(id, received),
            lambda _why: self._link_ended(id, process),
        )
        process.owner.on_link(id, link)

    def is_hosted_by(self, agent: AgentRecord, id: str) -> bool | None:
        """Return whether an agent hosts a process; None: the process is not known."""
        process = self._processes.get(id)
        return process.agent is agent if process else None

    def sampled(self, samples: Samples) -> None:
        """Store an agent's samples of its processes."""
        now = time.monotonic()
        for sample in samples.samples:
            if process := self._processes.get(sample.id):
                process.sample, process.sampled_at = sample, now

    def heard(self, message: Started | NotStarted | Exited | TaskReport) -> None:
        """Handle an agent's message about one of its processes."""
        process = self._processes.get(message.id)
        if process is None:
            return
        match message:
            case Started():
                process.pid = message.pid
            case NotStarted():
                self._not_started(message)
            case Exited():
                self._exited(message.id, process, message)
            case TaskReport():
                process.owner.on_report(message.id, message)

    def drain(self, agent: AgentRecord, notice: Draining) -> None:
        """Drain a host that is about to be taken away.

        No new process goes there, and its work is finished or handed on.
        """
        why = agent.draining = escaped(notice.why)
        self.tell_owners(f"{agent.host} is being taken away ({why}); its processes finish what they do", "preemption")
        for id in list(agent.processes):
            process = self._processes.get(id)
            if process:
                process.owner.on_draining(id, why, notice.left_s)

    def gone_with(self, agent: AgentRecord, why: str) -> None:
        """Handle the loss of an agent, with its processes."""
        for id in (*agent.processes, *agent.services):
            process = self._processes.get(id)
            if process:
                self._gone_with_agent(id, process, why)

    def all_gone(self, why: str) -> None:
        """Handle the loss of all agents, with every process whose end they have not reported.

        No owner waits for these processes any more.
        """
        for id, process in list(self._processes.items()):
            self._gone_with_agent(id, process, why)

    def tell_owners(self, text: str, kind: str = "") -> None:
        """Tell all owners of an event that the user should know; `kind` is as in `EventView`."""
        text = escaped(text)  # it may quote agents, engines and hosts
        logger.warning(text)
        for owner in {id(process.owner): process.owner for process in list(self._processes.values())}.values():
            owner.on_event(text, kind)

    def fail(self, error: Exception) -> None:
        """Tell all owners, and refuse later requests: a process that will never be placed would wait for ever."""
        with self._lock:
            self.failure = self.failure or error
            owners = list(self._owners)
        for owner in owners:
            try:
                owner.on_failed(error)
            except Exception:  # the others must be told as well
                logger.exception("an owner could not be told that its session has failed")

    # Implementation

    def _begin(self, id: str, process: ManagedProcess) -> None:
        """Have the agent of a process start it."""
        spec, agent, code = process.spec, process.agent, self._beginning.code
        assert agent and agent.link
        message = StartProcess(
            id=id,
            name=spec.name,
            entry=spec.entry,
            secret=process.credentials.secret,
            address=str(self._home.address),
            environment={**spec.environment, **injection.environment()},
            changes=environment.sendable_variables(self._changes(agent, process.environment)),
            limits_threads=spec.limits_threads,
            cpus=spec.resources.cpus,
            preload=spec.preload,
            folder=sendable(working_folder()),
            path=tuple(map(sendable, import_path())),
            task_limit_s=spec.task_limit_s,
            gpus=spec.resources.gpus,
            certificate=Certificate.of(process.certificate) if process.certificate else None,
            code=code.id if code else "",
            code_root=code.root if code else "",
            bounded=spec.bounded,
            memory_bytes=spec.resources.memory_bytes or 0,
            keeps_records=self._records.has_listeners,
            run=process.run,
            output=spec.output,
            sent=bootstrap.launcher_time() if self._home.passport else 0.0,
        )
        try:
            if self._code_sender:
                self._code_sender.send(agent)
            agent.link.send(message)
            if process.request:
                agent.link.send(SetRequest(id, process.request))
        except LinkClosed:
            pass  # the agent is lost, and its processes are placed again
        except OSError as error:  # no memory or descriptors are left here; its owner would wait for ever
            why = f"the project's files cannot be sent to {agent.label}: {error}{what_to_raise(error)}"
            self._not_started(NotStarted(id, why))

    def _request(self, id: str, word: int) -> None:
        process = self._processes.get(id)
        if process:
            process.request = word
            self._tell_agent_of(id, SetRequest(id, word))

    def _variables(self, spec: ProcessSpec) -> Mapping[str, str]:
        """Return the environment of this process now; the same object while nothing in it changes."""
        now = environment.snapshot()
        if spec.limits_threads:  # a limit that this process has by itself does not apply to those that it starts
            defaults = bootstrap.default_threads.items()
            now = {name: value for name, value in now.items() if (name, value) not in defaults}
        if now != self._last_variables:
            self._last_variables = now
        return self._last_variables

    def _changes(self, agent: AgentRecord, variables: Mapping[str, str]) -> dict[str, environment.Change]:
        if agent.environment is not None:
            return environment.changes_here(variables, agent.environment)
        return environment.changes_elsewhere(variables, self._beginning.variables)

    def _not_started(self, failure: NotStarted) -> None:
        process = self._processes.get(failure.id)
        if process:
            self._forget(failure.id)
            process.owner.on_not_started(failure.id, failure)

    def _link_ended(self, id: str, process: ManagedProcess) -> None:
        process.link = None
        if process.exited:
            self._gone(id, process, process.exited, host_lost=False)
        else:
            left_s = _LEAVING_S if process.has_taken_leave else _SILENT_S
            self.loop.call_later(left_s, lambda: self.signal(id, signal.SIGKILL))

    def _exited(self, id: str, process: ManagedProcess, exited: Exited) -> None:
        """Handle the end of a process, after its last messages.

        Those from another host may come later than this news.
        """
        link = process.link
        if link is None or link.closed or link.stream.carries_fds:
            self._gone(id, process, exited, host_lost=False)
            return

        def wait_no_longer() -> None:
            if id in self._processes:
                self._gone(id, process, exited, host_lost=False)

        process.exited = exited
        self.loop.call_later(_LAST_WORDS_S, wait_no_longer)

    def _gone_with_agent(self, id: str, process: ManagedProcess, why: str) -> None:
        exited = process.exited or gone_with_agent(id, process.pid, why)
        self._gone(id, process, exited, host_lost=process.exited is None)

    def _gone(self, id: str, process: ManagedProcess, exited: Exited, *, host_lost: bool) -> None:
        link, process.link, process.exited = process.link, None, None
        if link:
            self.loop.drain(link)  # its messages from before its death count
            self.loop.remove_link(link)
        self._forget(id, is_cut=host_lost)
        self._tell_of_death(process, exited)
        process.owner.on_exited(id, exited, host_lost)

    def _tell_of_death(self, process: ManagedProcess, exited: Exited) -> None:
        """Tell those that keep the run of a process that it has died, unless that was wanted."""
        is_wanted = process.was_signalled or process.has_taken_leave or self.failure is not None
        if process.run and not process.spec.run and exited.exit_code and not is_wanted:
            host = process.agent.host if process.agent else ""
            tell_of_death(process.run, record_of(exited, name=process.spec.name, host=host))

    def _withdraw(self, id: str) -> None:
        process = self._processes.get(id)
        if process and process.agent is None:
            gone = gone_with_agent(id, 0, "it was ended before it had a host")
            self._gone(id, process, gone, host_lost=True)

    def _kill(self, id: str) -> None:
        """Withdraw a process if it has no host by now; otherwise its agent was told to start it, and kills it."""
        self._withdraw(id)
        self._tell_agent_of(id, SignalProcess(id, signal.SIGKILL))

    def _forget(self, id: str, *, is_cut: bool = False) -> None:
        self._members.retire(id)
        with self._lock:
            process = self._processes.pop(id, None)
        if process and process.agent:
            self._fleet.release(process.agent, id)
            self._retirements.note(id, process.certificate, is_cut=is_cut)

    def _unlink(self, id: str) -> None:
        process = self._processes.get(id)
        if process and process.link:
            self.loop.remove_link(process.link)

    def _tell_agent_of(self, id: str, message: msgspec.Struct) -> None:
        process = self._processes.get(id)
        if process and process.agent and process.agent.link:
            process.agent.link.send_if_open(message)


_numbers = itertools.count(1)
