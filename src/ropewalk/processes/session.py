"""Sessions: the launcher's side of agents and processes.

    Pool, Program, Trainer ──lease──▶ Session ──engine──▶ agents ──▶ processes
                                         │ one loop: control links, data links, directory, credentials

There is one session per launcher and engine. It opens when its first user needs a
process, and ends a short while after its last user. Inside a process of a session,
a session joins the agent it was started by, instead of starting one: processes of a
pool inside a pool worker are siblings on the same host, owned by that worker.

Owners hear of their processes on the loop's thread and must not block there.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import shutil
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from ropewalk import injection
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine, JobSpec, JobState
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.errors import EngineError, LinkClosed, PoolClosed, StartFailed, TransportError
from ropewalk.processes import bootstrap
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.messages import (
    CONTROL,
    AgentBoot,
    AgentUp,
    DropBlob,
    Exited,
    HostEvent,
    NotStarted,
    Output,
    OutputSeen,
    Peek,
    Ping,
    PutBlob,
    Recall,
    Report,
    Sample,
    Samples,
    Shutdown,
    SignalProcess,
    Started,
    StartProcess,
)
from ropewalk.processes.output import Console
from ropewalk.processes.page import IDLE, PageReport
from ropewalk.settings import Settings
from ropewalk.settings import current as current_settings
from ropewalk.supervision.liveness import Lease, Liveness
from ropewalk.supervision.restart import GiveUp, Restart, RestartBudget
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import AllowList, Credentials, create_run_folder
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.server import UnixListener

logger = logging.getLogger(__name__)

_TICK_S = 0.5
#: An agent gets this long from its submission to its first word.
_AGENT_START_S = 60.0
#: How long agents may take to end their processes and themselves when the session ends.
_END_S = 3.0
#: A process whose link has closed but which does not die is ended after this long.
_SILENT_S = 2.0

#: A process whose agent is gone is given this long to be gone too.
_ORPHAN_S = 1.0

EMPTY_PAGE = PageReport(IDLE, 0.0, 0, b"", b"", b"")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start."""

    group: str
    """The name of what it belongs to, such as "pool-1"."""
    rank: int
    """Its number there."""
    entry: str
    """`module:function`; called in the new process with its `ProcessContext`."""
    codec: Codec
    """The protocol of its link to the owner."""
    resources: Resources = field(default_factory=Resources)
    preload: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    task_limit_s: float | None = None

    @property
    def name(self) -> str:
        """The name that people see."""
        return f"{self.group}.{self.rank}"


class Owner(Protocol):
    """Who asked for processes. Everything is called on the loop's thread."""

    def on_link(self, id: str, link: Link) -> None:
        """The process is up and its link open."""

    def on_message(self, id: str, received: Received) -> None:
        """The process says something to its owner."""

    def on_report(self, id: str, report: Report) -> None:
        """The answer to a peek or a recall."""

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        """The process is gone; everything it sent was delivered before. `host_lost`: its agent is gone with it."""

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        """The process could not be started."""

    def on_event(self, text: str) -> None:
        """Something happened to a host of this session, such as the loss of an agent."""

    def on_failed(self, error: Exception) -> None:
        """The session cannot give processes any more. May be told to one who has given the session back as well."""


@dataclass(slots=True)
class _Process:
    spec: ProcessSpec
    owner: Owner
    credentials: Credentials
    agent: _Agent | None = None
    link: Link | None = None
    pid: int = 0
    sample: Sample | None = None


@dataclass(slots=True, eq=False)
class _Agent:
    id: str
    lease: Lease
    job: str = ""
    link: Link | None = None
    pid: int = 0
    host: str = ""
    submitted: float = field(default_factory=time.monotonic)
    blobs: dict[str, list[Owner]] = field(default_factory=dict[str, list[Owner]])
    """Blobs that were sent there, with those who need them."""
    processes: dict[str, _Process] = field(default_factory=dict[str, _Process])


class Session:
    """Agents, and the processes they host, for the users of one launcher.

    Usually made by the first pool; make one to share it by name or to keep it open:

        with rw.Session() as session:
            with rw.Pool(4, session=session) as pool: ...

    Args:
        engine: where agents run; the setting `engine` by default. Ignored inside a
            process of a session, which joins the session it runs in.
    """

    def __init__(self, engine: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or current_settings(engine=engine)
        self.pid = os.getpid()
        self._parent = bootstrap.current
        self._lock = threading.RLock()
        self._users = 0
        self._kept_open = False
        self._opened = False
        self._closed = False
        self._failure: Exception | None = None
        """Why it gives processes no more, from the moment in which its owners are told."""
        self._owners: weakref.WeakSet[Owner] = weakref.WeakSet()
        """All that asked for processes, also those that have none now: they may be about to ask again."""
        self._ended = threading.Event()
        self._loop: Loop  # from `_open` on: making a session opens no descriptors
        self._members = AllowList()
        self._console = Console()
        self._numbers = itertools.count(1)
        self._agents: dict[str, _Agent] = {}
        self._processes: dict[str, _Process] = {}
        self._waiting: list[str] = []
        self._agent_budget = RestartBudget()
        self._engine: Engine | None = None
        self._engine_lock = threading.Lock()
        self.folder = Path()
        self.run_id = ""

    # The user's side: any thread

    def __enter__(self) -> Session:
        self.lease()
        with self._lock:
            self._kept_open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "new"
        return f"<Session engine={self.settings.engine!r} {state}, {len(self._processes)} processes>"

    @property
    def closed(self) -> bool:
        """Whether it has ended, or belongs to the process this one was forked from."""
        return self._closed or self.pid != os.getpid()

    @property
    def has_failed(self) -> bool:
        """Whether it can give no processes any more."""
        return self._failure is not None

    @property
    def loop(self) -> Loop:
        """The loop on which owners are called."""
        return self._loop

    @property
    def default_size(self) -> int:
        """How many processes a pool has by default: the CPUs one may use here."""
        return usable_cpus() if self._parent is None else max(1, int(self._parent.cpus))

    def lease(self) -> None:
        """Use the session: it stays open until as many `release` calls were made.

        Raises:
            PoolClosed: the session has ended, or belongs to the process this one was forked from.
            StartFailed: no agent could be asked for, or none stays up.
        """
        with interrupts_deferred, self._lock:
            if self.closed:
                raise PoolClosed("this session has ended (or belongs to the process this one was forked from)")
            self._check_gives_processes()
            self._users += 1
            if not self._opened:
                try:
                    self._open()
                except BaseException:
                    self._users -= 1
                    self.close()  # the next pool tries with another one
                    raise

    def release(self) -> None:
        """Use it no longer; the session ends a short while after its last user."""
        with interrupts_deferred, self._lock:
            self._users -= 1
            if self._users == 0 and not self._kept_open and not self.closed:
                self._loop.call_soon(lambda: self._loop.call_later(self.settings.session_idle_s, self._end_if_idle))

    def start(self, spec: ProcessSpec, owner: Owner) -> str:
        """Ask for a process; returns its id at once. The owner hears what becomes of it.

        Raises:
            StartFailed: the session was closed, or none of its agents stays up.
        """
        # Unique at the agent: sessions of several processes may share it, and their pools may have the same names.
        id = f"{spec.name}#{os.getpid()}-{next(_process_numbers)}"
        credentials = Credentials.create(self.run_id, id)
        with self._lock:
            self._check_gives_processes()
            self._members.admit(id, credentials.secret)
            self._owners.add(owner)
            self._processes[id] = _Process(spec, owner, credentials)
        self._loop.call_soon(lambda: self._place(id))
        return id

    def signal(self, id: str, number: int) -> None:
        """Send a signal to a process; SIGKILL also ends all that it started."""
        self._tell_agent_of(id, SignalProcess(id, number))

    def recall(self, id: str, until: int, *, everything: bool = False) -> None:
        """Take back tasks before `until` that have not started, half of them or all; see `Owner.on_report`."""
        self._tell_agent_of(id, Recall(id, until, everything))

    def peek(self, id: str) -> None:
        """Ask what a process is doing and has finished; see `Owner.on_report`."""
        self._tell_agent_of(id, Peek(id))

    def retire(self, id: str) -> None:
        """Refuse a process from now on and end it: nothing it says later is heard."""
        self._members.retire(id)
        self.signal(id, signal.SIGKILL)
        self._loop.call_soon(lambda: self._unlink(id))

    def provide_blob(self, id: str, ref: BlobRef, fd: int) -> None:
        """Make sure that the host of a process has a blob; sends it at most once to each host."""
        process = self._processes.get(id)
        agent = process.agent if process else None
        if agent is None or agent.link is None:
            return
        assert process
        with self._lock:  # until it is sent, or what another owner drops just now could overtake it
            holders = agent.blobs.setdefault(ref.id, [])
            if not holders:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(PutBlob(ref), fds=[fd])
            if process.owner not in holders:
                holders.append(process.owner)

    def drop_blob(self, blob_id: str, owner: Owner) -> None:
        """An owner's processes need a blob no more; hosts forget it with its last owner."""
        with self._lock:
            for agent in list(self._agents.values()):
                holders = agent.blobs.get(blob_id)
                if not holders or owner not in holders:
                    continue
                holders.remove(owner)
                if not holders:
                    del agent.blobs[blob_id]
                    if agent.link:
                        with contextlib.suppress(LinkClosed):
                            agent.link.send(DropBlob(blob_id))

    def pid_of(self, id: str) -> int:
        """The process id of a process on its host; 0 before it is known."""
        process = self._processes.get(id)
        return process.pid if process else 0

    def host_of(self, id: str) -> str:
        """The host of a process; empty before it is known."""
        process = self._processes.get(id)
        return process.agent.host if process and process.agent else ""

    def sample_of(self, id: str) -> Sample | None:
        """What a process used when it was last looked at."""
        process = self._processes.get(id)
        return process.sample if process else None

    def agent_pids(self) -> list[int]:
        """The process ids of the agents of this session."""
        return [agent.pid for agent in list(self._agents.values()) if agent.pid]

    def close(self) -> None:
        """End every process and agent and remove the run folder; may be called twice, but not from the loop.

        Pools and programs that still use it fail with `PoolClosed`: nobody waits for them in vain.
        """
        if self.pid != os.getpid():
            return
        with interrupts_deferred, self._lock:
            first, self._closed = not self._closed, True
        if not first:
            # Perhaps it just ends for idleness, in a thread that the end of the interpreter would cut short.
            self._ended.wait(2 * _END_S)
            return
        try:
            if self._opened:
                self._end()
        finally:  # a second Ctrl-C while we wait must not leave the folder
            self._remove_folder()
            _registry_forget(self)
            self._ended.set()

    def _end(self) -> None:
        # First, so that nobody takes the ends of its processes for deaths, and has them replaced.
        failure = PoolClosed("the session was closed while a pool or a program still used it; end these first")
        self._on_loop(lambda: self._fail(failure))
        for agent in list(self._agents.values()):
            if agent.link:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(Shutdown())
        self._end_agents()
        self._on_loop(self._report_ends)
        self._on_loop(self._listener.close)
        self._loop.stop()
        if self._loop.thread:
            self._loop.thread.join(5.0)
        self._console.close()

    def _on_loop(self, call: Callable[[], object]) -> None:
        """Have the loop make a call, and wait for it, but not for a loop that hangs."""
        called = threading.Event()
        self._loop.call_soon(call)
        self._loop.call_soon(called.set)
        called.wait(1.0)

    def _report_ends(self) -> None:
        """The agents are gone, and with them whatever they have not told: nobody shall wait for it."""
        for id, process in list(self._processes.items()):
            exited = _gone_with_agent(id, process.pid, "the session was closed")
            self._process_gone(id, process, exited, host_lost=True)

    def _check_gives_processes(self) -> None:
        if self._failure:
            raise StartFailed(f"this session gives no processes any more: {self._failure}") from self._failure

    def kill(self) -> None:
        """End everything at once, without asking and without waiting for words."""
        if self._opened and self.pid == os.getpid():
            for agent in list(self._agents.values()):
                if agent.pid and self._parent is None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(agent.pid, signal.SIGKILL)
            self._remove_folder()

    def forget(self) -> None:
        """In a forked child: close our copies of descriptors; the session stays with the parent."""
        self._closed = True
        if self._opened:
            self._listener.forget()
            self._loop.forget()

    # Opening and ending

    def _open(self) -> None:
        if self._parent is None:
            self.run_id = os.urandom(8).hex()
            self.folder = create_run_folder(self.settings.run_folder)
            socket_name = "launcher.sock"
        else:
            self.run_id = self._parent.credentials.run_id
            self.folder = Path(self._parent.folder)
            socket_name = f"s{os.getpid()}-{next(_session_numbers)}.sock"
        self._loop = Loop()
        try:
            self._listener = UnixListener(
                self._loop, str(self.folder / socket_name), self.run_id, self._members, CONTROL, self._linked
            )
            self._opened = True
            self._loop.call_soon(self._listener.open)
            self._loop.call_soon(self._tick)
            self._loop.start("ropewalk-session")
            _registry_add(self)
            if self._parent is None:
                self._engine = make_engine(self.settings.engine)
                self._submit_agent()
            else:
                self._join_agent(self._parent)
        except (OSError, EngineError, TransportError) as error:
            if not self._opened:
                self._loop.forget()
            if isinstance(error, EngineError | TransportError):
                raise
            raise StartFailed(f"the session could not be opened in {self.folder}: {error}") from error

    def _submit_agent(self) -> None:
        agent = _Agent(f"agent-{next(self._numbers)}", Lease(self.settings.lease_s, time.monotonic()))
        credentials = Credentials.create(self.run_id, agent.id)
        self._members.admit(agent.id, credentials.secret)
        boot = AgentBoot(
            run_id=self.run_id,
            agent_id=agent.id,
            secret=credentials.secret,
            address=str(self._listener.address),
            folder=str(self.folder),
            launcher_pid=os.getpid(),
            max_processes=self.settings.max_processes,
            log_folder=str(self.settings.logs or ""),
        )
        spec = JobSpec(
            command=[sys.executable, "-m", "ropewalk.processes.agent"],
            name="ropewalk-agent",
            environment=_import_environment(),
            stdin=msgspec.json.encode(boot),
            folder=str(self.folder),
        )
        self._agents[agent.id] = agent
        assert self._engine
        with self._engine_lock:
            if self._closed:
                return
            agent.job = self._engine.submit(spec, 1, self.run_id, agent.id)[0]

    def _join_agent(self, parent: bootstrap.ProcessContext) -> None:
        link = dial(parse_address(parent.agent_address), parent.credentials, CONTROL)
        agent = _Agent("agent", Lease(self.settings.lease_s, time.monotonic()), link=link, host=parent.host)
        self._agents[agent.id] = agent
        self._loop.call_soon(lambda: self._agent_linked(agent, link))

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._users == 0 and not self._kept_open and not self._closed:
                threading.Thread(target=self.close, name="ropewalk-session-end", daemon=True).start()

    def _end_agents(self) -> None:
        """Wait for agents to end by themselves, then end them."""
        if self._engine is None:
            return  # a joined agent belongs to the session of our launcher
        jobs = [agent.job for agent in self._agents.values() if agent.job]
        deadline = time.monotonic() + _END_S
        with self._engine_lock, contextlib.suppress(EngineError):
            jobs += [job for job in self._engine.find(self.run_id) if job not in jobs]  # lost ones that still run
            while time.monotonic() < deadline:
                states = self._engine.poll(jobs)
                if all(status.state in (JobState.ENDED, JobState.LOST) for status in states.values()):
                    break
                time.sleep(0.005)
            self._engine.cancel(jobs)
            self._engine.close()

    def _ask_engine(self, call: Callable[[Engine], None]) -> None:
        """Make a call to the engine from a thread of its own: it may block, and the loop may not."""
        engine = self._engine
        assert engine

        def ask() -> None:
            with self._engine_lock:
                if not self._closed:
                    call(engine)

        threading.Thread(target=ask, name="ropewalk-engine", daemon=True).start()

    def _remove_folder(self) -> None:
        if self._parent is None and self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    # The loop's side

    def _linked(self, id: str, link: Link) -> None:
        agent = self._agents.get(id)
        if agent:
            self._agent_linked(agent, link)
            return
        process = self._processes.get(id)
        if process is None or self._failure:  # its owner has been told that nothing comes any more
            link.close()
            return
        process.link = link
        link.relabel(process.spec.codec, link.limits)
        self._loop.add_link(
            link,
            lambda received: process.owner.on_message(id, received),
            lambda _why: self._loop.call_later(_SILENT_S, lambda: self.signal(id, signal.SIGKILL)),
        )
        process.owner.on_link(id, link)

    def _agent_linked(self, agent: _Agent, link: Link) -> None:
        agent.link = link
        self._loop.add_link(
            link, lambda received: self._heard(agent, received), lambda why: self._agent_lost(agent, why)
        )
        if self._closed:  # it came up while the session was ending, and would be waited for
            with contextlib.suppress(LinkClosed):
                link.send(Shutdown())
        elif self._parent is not None:
            self._place_waiting()

    def _heard(self, agent: _Agent, received: Received) -> None:
        agent.lease.heard(time.monotonic())
        message = received.message
        match message:
            case AgentUp():
                agent.pid, agent.host = message.pid, message.host
                self._agent_budget.ready(time.monotonic())
                self._place_waiting()
            case Samples():
                for sample in message.samples:
                    if sample.id in self._processes:
                        self._processes[sample.id].sample = sample
            case Output():
                self._show(agent, message)
            case HostEvent():
                self._tell_owners(f"{agent.host}: {message.text}")
            case Started() | NotStarted() | Exited() | Report():
                process = self._processes.get(message.id)
                if process:
                    self._heard_of(process, message)
            case _:
                pass  # Pong

    def _heard_of(self, process: _Process, message: Started | NotStarted | Exited | Report) -> None:
        match message:
            case Started():
                process.pid = message.pid
            case NotStarted():
                self._forget_process(message.id)
                process.owner.on_not_started(message.id, message)
            case Exited():
                self._process_gone(message.id, process, message, host_lost=False)
            case Report():
                process.owner.on_report(message.id, message)

    def _process_gone(self, id: str, process: _Process, exited: Exited, *, host_lost: bool) -> None:
        if process.link:
            self._loop.drain(process.link)  # what it sent before it died counts
            self._loop.remove_link(process.link)
        self._forget_process(id)
        process.owner.on_exited(id, exited, host_lost)

    def _forget_process(self, id: str) -> None:
        self._members.retire(id)
        with self._lock:
            process = self._processes.pop(id, None)
        if process and process.agent:
            process.agent.processes.pop(id, None)

    def _unlink(self, id: str) -> None:
        process = self._processes.get(id)
        if process and process.link:
            self._loop.remove_link(process.link)

    def _place(self, id: str) -> None:
        process = self._processes.get(id)
        if process is None:
            return
        ready = [agent for agent in self._agents.values() if agent.link and (agent.pid or self._parent)]
        if not ready:
            self._waiting.append(id)
            return
        agent = min(ready, key=lambda agent: len(agent.processes))
        process.agent = agent
        agent.processes[id] = process
        spec = process.spec
        message = StartProcess(
            id=id,
            name=spec.name,
            entry=spec.entry,
            secret=process.credentials.secret,
            address=str(self._listener.address),
            environment={**spec.environment, **injection.environment()},
            cpus=spec.resources.cpus,
            preload=spec.preload,
            folder=_working_folder(),
            path=tuple(path or os.getcwd() for path in sys.path),
            task_limit_s=spec.task_limit_s,
        )
        assert agent.link
        with contextlib.suppress(LinkClosed):  # then the agent is lost, and its processes are placed again
            agent.link.send(message)

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for id in waiting:
            self._place(id)

    def _tell_agent_of(self, id: str, message: msgspec.Struct) -> None:
        process = self._processes.get(id)
        if process and process.agent and process.agent.link:
            with contextlib.suppress(LinkClosed):
                process.agent.link.send(message)

    def _agent_lost(self, agent: _Agent, why: str) -> None:
        """One event, however many processes it takes with it."""
        self._agents.pop(agent.id, None)
        self._members.retire(agent.id)
        if self._closed:
            return
        text = f"the agent on {agent.host or 'a host'} (pid {agent.pid}) is gone: {why}"
        self._tell_owners(f"{text}; its {len(agent.processes)} processes are replaced")
        for id, process in list(agent.processes.items()):
            self._process_gone(id, process, _gone_with_agent(id, process.pid, text), host_lost=True)
        if self._parent is not None:
            # The kernel ends us with the agent, in a moment. An error now would become the result of a task that
            # runs again elsewhere; it is for the case that the agent lives and only its link is lost.
            error = StartFailed(f"{text}; this process ends with it")
            self._loop.call_later(_ORPHAN_S, lambda: self._fail(error))
            return
        self._ask_engine(lambda engine: engine.cancel([agent.job]))
        match self._agent_budget.died(time.monotonic(), healthy=agent.pid != 0, cause=why):
            case Restart(delay_s):
                self._loop.call_later(delay_s, lambda: None if self._closed else self._submit_agent_later())
            case GiveUp(reason, _):
                self._fail(StartFailed(f"no agent stays up: {reason}. The last one: {why}"))

    def _submit_agent_later(self) -> None:
        def submit() -> None:
            try:
                if not self._closed:
                    self._submit_agent()
            except (EngineError, OSError) as error:
                failure = StartFailed(f"no new agent could be submitted: {error}")
                self._loop.call_soon(lambda: self._fail(failure))

        threading.Thread(target=submit, name="ropewalk-engine", daemon=True).start()

    def _tick(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        for agent in list(self._agents.values()):
            if agent.link is None:
                self._check_start(agent, now)
                continue
            with contextlib.suppress(LinkClosed):
                agent.link.send(Ping())
            if agent.lease.state(now) is Liveness.LOST:
                silent = f"nothing was heard of it for {agent.lease.silent_s(now):.0f} s"
                self._loop.remove_link(agent.link)
                self._agent_lost(agent, silent)
        self._loop.call_later(_TICK_S, self._tick)

    def _check_start(self, agent: _Agent, now: float) -> None:
        """An agent that has not spoken yet may have died on the way."""
        if not agent.job or self._engine is None:
            return

        def check(engine: Engine) -> None:
            status = engine.poll([agent.job])[agent.job]
            late = now - agent.submitted > _AGENT_START_S
            if late or status.state in (JobState.ENDED, JobState.LOST):
                said = self._job_log(agent)
                why = f"it ended with exit code {status.exit_code} before it was up" if not late else "it never came up"
                self._loop.call_soon(lambda: self._never_up(agent, f"{why}. It said: {said or 'nothing'}"))

        self._ask_engine(check)

    def _never_up(self, agent: _Agent, why: str) -> None:
        if agent.id in self._agents and agent.link is None:
            self._agent_lost(agent, why)

    def _job_log(self, agent: _Agent) -> str:
        with contextlib.suppress(EngineError):
            return self._engine.logs(agent.job).strip()[-2000:] if self._engine else ""
        return ""

    def _show(self, agent: _Agent, output: Output) -> None:
        process = self._processes.get(output.id)
        who = f"{process.spec.group} {process.spec.rank}@{agent.host}" if process else f"{output.id}@{agent.host}"

        def shown() -> None:
            if agent.link:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(OutputSeen(output.size_bytes))

        self._console.show(who, output.text, output.is_error, shown)

    def _tell_owners(self, text: str) -> None:
        logger.warning(text)
        for owner in {id(process.owner): process.owner for process in self._processes.values()}.values():
            owner.on_event(text)

    def _fail(self, error: Exception) -> None:
        """Tell all owners, and those that come later by refusing them: what nobody will place would wait for ever."""
        with self._lock:
            self._failure = self._failure or error
            owners = list(self._owners)
        for owner in owners:
            try:
                owner.on_failed(error)
            except Exception:  # the others must hear of it as well
                logger.exception("an owner could not be told that its session has failed")


def _gone_with_agent(id: str, pid: int, why: str) -> Exited:
    """What is said of a process of which its agent can say nothing any more."""
    return Exited(
        id=id,
        pid=pid,
        exit_code=-signal.SIGKILL,
        out_of_memory="",
        ended_by=why,
        timed_out=False,
        ran_s=0.0,
        last_output="",
        page=EMPTY_PAGE,
    )


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _import_environment() -> dict[str, str]:
    """What a fresh interpreter needs to find this package, where it is not installed for it."""
    root = str(Path(__file__).resolve().parents[2])
    if root.endswith("site-packages"):
        return {}
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}


# The sessions of this process

_registry_lock = threading.Lock()
_sessions: dict[int, Session] = {}
_session_numbers = itertools.count(1)
_process_numbers = itertools.count(1)
_hooked = False


def default_session(engine: str | None = None) -> Session:
    """The session that pools of this process share, one per engine."""
    settings = current_settings(engine=engine)
    with _registry_lock:
        for session in _sessions.values():
            if not session.closed and not session.has_failed and session.settings.engine == settings.engine:
                return session
        session = Session(settings=settings)
        _sessions[id(session)] = session  # before it opens: two threads that make pools at once share it
        return session


def close_all() -> None:
    """End every session of this process."""
    _for_each(Session.close)


def kill_all() -> None:
    """End every session of this process at once, without asking."""
    _for_each(Session.kill)


def _for_each(action: Callable[[Session], None]) -> None:
    with _registry_lock:
        sessions = list(_sessions.values())
    for session in sessions:
        action(session)


def _registry_add(session: Session) -> None:
    global _hooked
    with _registry_lock:
        _sessions[id(session)] = session
        if not _hooked:
            atexit.register(close_all)
            os.register_at_fork(after_in_child=_forget_all)
            _hooked = True


def _registry_forget(session: Session) -> None:
    with _registry_lock:
        _sessions.pop(id(session), None)


def _forget_all() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()  # another thread may have held it at the fork
    for session in list(_sessions.values()):
        session.forget()
    _sessions.clear()
