"""Sessions: the launcher's side of agents and processes.

    Pool, Program, Trainer ──lease──▶ Session ──▶ fleet ──engine──▶ agents ──▶ processes
                                         │ one loop: control links, data links, directory, credentials

There is one session per launcher and engine. It opens when its first user needs a
process, and ends a short while after its last user. Inside a process of a session,
a session joins the agent it was started by, instead of starting one: processes of a
pool inside a pool worker are siblings on the same host, owned by that worker.

Owners hear of their processes on the loop's thread and must not block there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import queue
import re
import shutil
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ropewalk import injection
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine, Reach
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.errors import CodeRefused, EngineError, LinkClosed, PoolClosed, SettingsError, StartFailed, TransportError
from ropewalk.escaping import escaped
from ropewalk.processes import bootstrap, environment, open_sessions
from ropewalk.processes.agent_record import LAUNCHER, Agent, Home
from ropewalk.processes.code_bundle import Bundle, find_project, make_bundle
from ropewalk.processes.fleet import Fleet, default_resources
from ropewalk.processes.host_services import HostServices, find_through_agent
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.joined import JoinedAgent
from ropewalk.processes.launcher_record import LauncherRecord
from ropewalk.processes.messages import (
    CONTROL,
    Certificate,
    Draining,
    DropBlob,
    Exited,
    HostEvent,
    Met,
    NeedService,
    NeedToken,
    NeedWay,
    NotStarted,
    Output,
    OutputSeen,
    Peek,
    PutBlob,
    PutCode,
    Recall,
    RelayAt,
    Report,
    Retired,
    RetiredProcess,
    Sample,
    Samples,
    ServiceAt,
    SignalProcess,
    Started,
    StartProcess,
    TokenIs,
)
from ropewalk.processes.output import Console
from ropewalk.processes.owner import Owner, ProcessSpec, gone_with_agent
from ropewalk.processes.rights import TO_SESSION, guest_mark, may_say
from ropewalk.processes.ways import Way, Ways
from ropewalk.settings import Settings
from ropewalk.settings import current as current_settings
from ropewalk.transport.blobs import BlobRef, open_parts
from ropewalk.transport.credentials import AllowList, Credentials, ProcessCertificate, create_run_folder
from ropewalk.transport.host_listener import HostListener
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.main_namespace import is_importing
from ropewalk.transport.passport import Passport
from ropewalk.transport.tokens import host_of, key_of_host, new_key, token_for

logger = logging.getLogger(__name__)

#: Processes that are asked for within this time share the agents that they need.
_GATHER_S = 0.02
#: As long as more are asked for, others wait for them, but not longer than so many times this.
_GATHERINGS = 25
#: Who closes a session second waits so long for the first one.
_END_S = 6.0
#: A process whose link has closed but which does not die is ended after this long; after so long if it has taken leave.
_SILENT_S, _LEAVING_S = 2.0, 60.0
#: The last words of a process on another host travel apart from the news of its end, and may come so much later: TCP
#: sends again what was lost after 0.2 s, 0.6 s, 1.4 s, and a link that stays silent for longer is one of a lost host.
_LAST_WORDS_S = 3.0
#: What a service may run that another host asks for; people see a part of it in front of what the service prints.
_ENTRY = re.compile(r"(?=.{1,200}$)[A-Za-z_]\w*(\.\w+)*:\w+", re.ASCII)
#: Who waits for a service looks this often whether the session has ended.
_LOOK_UP_S = 1.0


@dataclass(slots=True)
class _Process:
    spec: ProcessSpec
    owner: Owner
    credentials: Credentials
    environment: Mapping[str, str]
    """The variables that this process had when it asked for it."""
    certificate: ProcessCertificate | None = None
    agent: Agent | None = None
    link: Link | None = None
    """Until it ends."""
    pid: int = 0
    sample: Sample | None = None
    exited: Exited | None = None
    """How it ended, while its last words are still under way."""
    has_taken_leave: bool = False
    is_leaving: bool = False
    """Whether its owner lets it go, so that another one may be there in its place already."""


class Session:
    """Agents, and the processes they host, for the users of one launcher.

    Usually made by the first pool; make one to share it by name or to keep it open:

        with rw.Session() as session:
            with rw.Pool(4, session=session) as pool: ...

    Args:
        engine: where agents run; the setting `engine` by default. Ignored inside a
            process of a session, which joins the session it runs in.
        hosts: how many agents; by default as many as the processes need.
        engine_options: the engine's own options, on top of those in the settings.
        advertise: the IP address by which other hosts reach this one, if there are several.
        settings: all of these at once, instead.

    Raises:
        SettingsError: a setting has a value that it cannot have.
    """

    def __init__(
        self,
        engine: str | None = None,
        *,
        hosts: int | None = None,
        engine_options: Mapping[str, object] | None = None,
        advertise: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings: Settings = settings or current_settings(
            engine=engine, hosts=hosts, engine_options=engine_options, advertise=advertise
        )
        self.pid: int = os.getpid()
        self._parent = bootstrap.current
        self._lock = threading.RLock()
        self._users = 0
        self._num_leases = 0
        self._kept_open = False
        self._opened = False
        self._closed = False
        self._retired = False
        """Whether it is about to close for idleness, and cannot be leased any more."""
        self._failure: Exception | None = None
        """Why it gives processes no more, from the moment in which its owners are told."""
        self._owners: weakref.WeakSet[Owner] = weakref.WeakSet()
        """All that asked for processes, also those that have none now: they may be about to ask again."""
        self._ended = threading.Event()
        self._loop: Loop  # from `_open` on: making a session opens no descriptors
        self._members = AllowList()
        self._console = Console()
        self._processes: dict[str, _Process] = {}
        self._waiting: list[str] = []
        self._too_many: list[str] = []
        """Of an owner that asks for more than the engine's hosts have room for; see `_refuse_too_many`."""
        self._fleet: Fleet | JoinedAgent
        self._passport: Passport | None = None
        self._issue: Callable[[str], ProcessCertificate] | None = None
        self._code: Bundle | None = None
        self._ways: Ways | None = None
        self._record: LauncherRecord | None = None
        self._wanting = False
        self._overbearing: set[Agent] = set()
        """Those that have spoken for processes of others."""
        parent = self._parent
        self._id_end = guest_mark(parent.passport.host if parent.passport else "") if parent else ""
        """Of all processes that it starts; by this the launcher knows their host."""
        self._first_variables: Mapping[str, str] = {}
        """Those of this program at its beginning, in a run of several hosts."""
        self._last_variables: Mapping[str, str] = {}
        self._when_closed: list[Callable[[], object]] = []
        self._services = HostServices(self)
        self._owners.add(self._services)
        self._run_key = new_key()
        """From which the keys of all services of the run follow; of no use inside a process of another session."""
        self._retired_ids: set[str] = set()
        """All processes that were retired: nobody gets a token in their names."""
        self._just_retired: list[RetiredProcess] = []
        self._retirement_listeners: list[Callable[[Retired], object]] = []
        self.folder: Path = Path()
        self.run_id: str = ""

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
        return self._closed or self._retired or self.pid != os.getpid()

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
            self._num_leases += 1
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
                last = self._num_leases
                idle_s = self.settings.session_idle_s
                self._loop.call_soon(lambda: self._loop.call_later(idle_s, lambda: self._end_if_idle(last)))

    def start(self, spec: ProcessSpec, owner: Owner) -> str:
        """Ask for a process; returns its id at once. The owner hears what becomes of it.

        Raises:
            StartFailed: the session was closed, or none of its agents stays up.
            RuntimeError: this process is just importing the script of another one.
        """
        if is_importing():
            raise RuntimeError(
                f"{spec.name} was to be started while this process imports the script of the one that started it; that "
                "would begin its work again: put what starts processes and pools under `if __name__ == '__main__':`"
            )
        # Unique at the agent: sessions of several processes may share it, and their pools may have the same names.
        id = f"{spec.name}#{os.getpid()}-{next(_process_numbers)}{self._id_end}"
        credentials = Credentials.create(self.run_id, id)
        certificate = self._issue(id) if self._issue else None
        with self._lock:
            self._check_gives_processes()
            self._console.open()
            self._members.admit(id, credentials.secret, certificate.fingerprint if certificate else None)
            self._owners.add(owner)
            self._processes[id] = _Process(spec, owner, credentials, self._variables(spec), certificate)
        self._fleet.prepare(spec.resources, lambda problem: self._prepared(id, problem))
        return id

    def signal(self, id: str, number: int) -> None:
        """Send a signal to a process; SIGKILL also ends all that it started, and what has no host yet."""
        self._tell_agent_of(id, SignalProcess(id, number))
        if number == signal.SIGKILL:
            self.withdraw(id)

    def takes_leave(self, id: str) -> None:
        """A process has said that it ends: its exit handlers and last threads get time. From the loop's thread."""
        process = self._processes.get(id)
        if process:
            process.has_taken_leave = True

    def leaves(self, id: str) -> None:
        """A process will end when it has done its work: it no longer counts among those that its owner asks for."""
        process = self._processes.get(id)
        if process:
            process.is_leaving = True

    def withdraw(self, id: str) -> None:
        """Do not start a process that has no host yet; its owner hears of its end. Of others this changes nothing."""
        self._loop.call_soon(lambda: self._withdraw(id))

    def recall(self, id: str, until: int, *, everything: bool = False) -> None:
        """Take back tasks before `until` that have not started, half of them or all; see `Owner.on_report`."""
        self._tell_agent_of(id, Recall(id, until, everything))

    def peek(self, id: str) -> None:
        """Ask what a process is doing and has finished; see `Owner.on_report`."""
        self._tell_agent_of(id, Peek(id))

    def retire(self, id: str) -> None:
        """Refuse a process from now on and end it: nothing it says later is heard."""
        self._members.retire(id)
        process = self._processes.get(id)
        if process:
            self._tell_of_retirement(id, process.certificate, is_cut=True)
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
                    if agent.link.stream.carries_fds:
                        agent.link.send(PutBlob(ref), fds=[fd])
                    else:
                        agent.link.send(PutBlob(ref), open_parts(os.dup(fd), ref.lengths, writable=False))
            if process.owner not in holders:
                holders.append(process.owner)

    def drop_blob(self, blob_id: str, owner: Owner) -> None:
        """An owner's processes need a blob no more; hosts forget it with its last owner."""
        with self._lock:
            for agent in list(self._fleet.agents.values()):
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

    def fingerprint_of(self, id: str) -> str:
        """Of the certificate of a process; empty if it has none."""
        process = self._processes.get(id)
        return process.certificate.fingerprint if process and process.certificate else ""

    def host_of(self, id: str) -> str:
        """The host of a process; empty before it is known."""
        process = self._processes.get(id)
        return process.agent.host if process and process.agent else ""

    def round_trip_of(self, id: str) -> float:
        """Seconds that a message to the host of a process and its answer are under way; 0 on this host."""
        process = self._processes.get(id)
        return process.agent.round_trip_s if process and process.agent else 0.0

    def agent_of(self, id: str) -> str:
        """The agent that hosts a process; empty before there is one."""
        process = self._processes.get(id)
        return process.agent.id if process and process.agent else ""

    def per_agent(self, resources: Resources) -> int:
        """How many processes that ask for this come and go together, because they fill a whole agent."""
        return self._fleet.per_agent(resources)

    def sample_of(self, id: str) -> Sample | None:
        """What a process used when it was last looked at."""
        process = self._processes.get(id)
        return process.sample if process else None

    def agent_pids(self) -> list[int]:
        """The process ids of the agents of this session."""
        return [agent.pid for agent in list(self._fleet.agents.values()) if agent.pid] if self._opened else []

    @property
    def passport(self) -> Passport | None:
        """Where this process is in a run of several hosts; None if there is one host."""
        return self._passport if self._parent is None else self._parent.passport

    def hosts(self) -> list[Agent]:
        """The agents that are up, as they are now."""
        return [agent for agent in list(self._fleet.agents.values()) if agent.link] if self._opened else []

    def ways(self) -> list[Way]:
        """The pairs of hosts that reach each other only through another one, and which that is."""
        return self._ways.known() if self._ways else []

    def any_agent(self) -> Agent | None:
        """One that is up, rather the first one; if there is none, one is asked for. From the loop's thread."""
        for agent in self._fleet.agents.values():
            if agent.up:
                return agent
        self._fleet.want([default_resources(self.settings)])
        return None

    def find_service(self, entry: str, unanswered: str = "") -> str:
        """The address of the process that serves this host with `entry`; in a launcher, of one that serves any host.

        Waits until it is up; a session that ends meanwhile is an error.

        Args:
            entry: what the process runs.
            unanswered: where it does not answer any more: waits for the next one, and gives the same address if the
                process there has not ended.

        Raises:
            StartFailed: it could not be started.
            TransportError: the agent of this host is gone.
        """
        if self._parent:
            return find_through_agent(self._parent, entry, unanswered)
        found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

        def tell(address: str, problem: str) -> None:
            found.put((address, problem))

        self._loop.call_soon(lambda: self._services.ask(entry, None, tell, unanswered))
        while True:
            with contextlib.suppress(queue.Empty):
                address, problem = found.get(timeout=_LOOK_UP_S)
                break
            self._check_gives_processes()  # one that has ended meanwhile answers nobody
            if self.closed:
                raise StartFailed("this session has ended")
        if problem:
            raise StartFailed(problem)
        return address

    def own_tokens(self) -> Callable[[str], str]:
        """What finds the token by which the launcher proves itself to the service at an address; also when forked."""
        key, certificate = self._run_key, self._passport.certificate if self._passport else None
        fingerprint = certificate.fingerprint if certificate else ""
        return lambda address: token_for(key_of_host(key, host_of(address)), address, LAUNCHER, fingerprint)

    def when_retired(self, call: Callable[[Retired], object]) -> Callable[[], object]:
        """Have a call made, on the loop, whenever processes are gone or struck off; returns what ends that."""
        self._retirement_listeners.append(call)
        return lambda: self._retirement_listeners.remove(call)

    def when_shown(self, call: Callable[[], object]) -> None:
        """Have a call made when what processes have printed until now is out; from the loop's thread."""
        self._console.when_shown(call)

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have a call made, once, when the session has ended."""
        with self._lock:
            if not self._closed:
                self._when_closed.append(call)
                return
        call()

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
            self._ended.wait(_END_S)
            return
        try:
            if self._opened:
                self._end()
        finally:  # a second Ctrl-C while we wait must not leave the folder
            self._remove_folder()
            open_sessions.remove(self)
            for call in self._when_closed:
                call()
            self._ended.set()

    def _end(self) -> None:
        # First, so that nobody takes the ends of its processes for deaths, and has them replaced.
        failure = PoolClosed("the session was closed while a pool or a program still used it; end these first")
        self._on_loop(lambda: self._fail(failure))
        self._fleet.close()
        if self._record:
            self._record.close()
        self._on_loop(self._report_ends)
        self._on_loop(self._listener.close)
        if self._ways:
            self._on_loop(self._ways.close)
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
            self._gone_with_agent(id, process, "the session was closed")

    def _check_gives_processes(self) -> None:
        if self._failure:
            raise StartFailed(f"this session gives no processes any more: {self._failure}") from self._failure

    def kill(self) -> None:
        """End everything at once, without asking and without waiting for words."""
        if self._opened and self.pid == os.getpid():
            self._fleet.kill()
            self._remove_folder()

    def forget(self) -> None:
        """In a forked child: close our copies of descriptors; the session stays with the parent."""
        self._closed = True
        if self._opened:
            self._listener.forget()
            if self._ways:
                self._ways.forget()
            if self._record:
                self._record.forget()
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
        engine: Engine | None = None
        try:
            if self._parent is None:
                engine = make_engine(self.settings.engine, self.settings.engine_options)
                if engine.reach is not Reach.HERE:
                    self._prepare_for_hosts(engine)
            self._listener = HostListener(
                self._loop,
                str(self.folder / socket_name),
                self._passport,
                self.run_id,
                self._members,
                CONTROL,
                self._linked,
            )
            if engine is None:
                assert self._parent
                self._fleet = JoinedAgent(self._parent, self._loop, self)
            else:
                home = Home(
                    self.run_id,
                    self.folder,
                    self.settings,
                    self._listener.address,
                    self._passport,
                    self._issue,
                    self._run_key,
                )
                self._fleet = Fleet(engine, home, self._loop, self._members, self)
                if self._passport:
                    ways = Ways(self._fleet, self._loop, self._listener, self._passport.ip, self._tell_owners)
                    self._passport = dataclasses.replace(self._passport, detour=ways.reach)
                    self._ways = ways
            self._opened = True
            if self._passport:
                self._record = LauncherRecord(self.run_id, self.settings.engine)
            self._loop.call_soon(self._listener.open)
            self._loop.start("ropewalk-session")
            open_sessions.add(self)
            self._fleet.open()
        except (OSError, EngineError, SettingsError, TransportError, CodeRefused) as error:
            if not self._opened:
                self._loop.forget()
                self._remove_folder()
            if not isinstance(error, OSError) or isinstance(error, TransportError):
                raise
            raise StartFailed(f"the session could not be opened in {self.folder}: {error}") from error

    def _prepare_for_hosts(self, engine: Engine) -> None:
        """Get ready to be reached by other hosts, and to send them the project's files."""
        self._first_variables = environment.at_beginning()
        ip = ""
        if engine.reach is Reach.NETWORK:
            # Only a run of several hosts loads these.
            from ropewalk.transport.authority import RunAuthority
            from ropewalk.transport.interfaces import choose_advertised

            ip = choose_advertised(self.settings.advertise, engine.hosts())
            self._issue = RunAuthority.create(self.run_id).issue
        self._passport = Passport(LAUNCHER, ip, self._issue(LAUNCHER) if self._issue else None)
        if self.settings.code == "bundle":
            main = getattr(sys.modules.get("__main__"), "__file__", None)
            project = find_project(Path(main) if main else None, Path(_working_folder()))
            self._code = make_bundle(project, self.settings.code_limit)

    def _end_if_idle(self, last: int) -> None:
        """End if nobody has used it since a lease was given back; `last` is its number."""
        with self._lock:
            if self._users == 0 and last == self._num_leases and not self._kept_open and not self.closed:
                self._retired = True
                threading.Thread(target=self.close, name="ropewalk-session-end", daemon=True).start()

    def _remove_folder(self) -> None:
        if self._parent is None and self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    # The loop's side

    def _linked(self, id: str, link: Link) -> None:
        agent = self._fleet.agents.get(id)
        if agent:
            self._fleet.linked(agent, link)
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
            lambda _why: self._link_ended(id, process),
        )
        process.owner.on_link(id, link)

    def _link_ended(self, id: str, process: _Process) -> None:
        process.link = None
        if process.exited:
            self._process_gone(id, process, process.exited, host_lost=False)
        else:
            left_s = _LEAVING_S if process.has_taken_leave else _SILENT_S
            self._loop.call_later(left_s, lambda: self.signal(id, signal.SIGKILL))

    def on_agent_up(self, agent: Agent) -> None:
        self._services.agent_is_up()
        self._place_waiting()

    def on_heard(self, agent: Agent, received: Received) -> None:
        message = received.message
        if not may_say(TO_SESSION, message, is_launcher=False, concerns=partial(self._may_be_hosted_by, agent)):
            if agent not in self._overbearing:
                self._overbearing.add(agent)
                words = f"{agent.label} said {type(message).__name__} of a process that it does not host"
                self._tell_owners(f"{words}; it was not acted on")
            return
        match message:
            case Samples():
                for sample in message.samples:
                    if sample.id in self._processes:
                        self._processes[sample.id].sample = sample
            case Output():
                self._show(agent, message)
            case HostEvent():
                self._tell_owners(f"{agent.host}: {message.text}")
            case Draining():
                self._drain(agent, message)
            case NeedWay():
                if self._ways:
                    self._ways.need(agent, message)
            case NeedService():
                self._need_service(agent, message)
            case NeedToken():
                self._need_token(agent, message)
            case Retired():
                if self._parent:  # its launcher says so, through the agent
                    self._tell_listeners(message)
                else:
                    self._guests_gone(agent, message)
            case RelayAt():
                if self._ways:
                    self._ways.relay_at(agent, message)
            case Met():
                if self._ways:
                    self._ways.met(agent, message.ticket)
            case Started() | NotStarted() | Exited() | Report():
                process = self._processes.get(message.id)
                if process:
                    self._heard_of(process, message)
            case _:
                pass  # Pong

    def _may_be_hosted_by(self, agent: Agent, id: str) -> bool:
        process = self._processes.get(id)
        if process:
            return process.agent is agent
        return self._parent is not None or id in self._retired_ids or self._is_guest(agent, id)

    def _is_guest(self, agent: Agent, id: str) -> bool:
        """Whether a process was started by a session inside of a process on the host of an agent."""
        return id.endswith(guest_mark(agent.id if self._passport else ""))

    def _guests_gone(self, agent: Agent, news: Retired) -> None:
        """Processes have ended that sessions inside of processes have started, which do not know our services."""
        for process in news.processes:
            if self._is_guest(agent, process.id):
                agent.guests.discard(process.id)
                self._tell_of_retirement(process.id, None, is_cut=False)

    def _need_service(self, agent: Agent, need: NeedService) -> None:
        """A process on a host wants one that serves it."""

        def tell(address: str, problem: str) -> None:
            if agent.link:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(ServiceAt(need.ticket, address, problem))

        if _ENTRY.fullmatch(need.entry):
            self._services.ask(need.entry, agent, tell, need.unanswered)
        else:
            tell("", f"{need.entry[:100]!r} is no entry; write module:function")

    def _need_token(self, agent: Agent, need: NeedToken) -> None:
        """A process on a host wants to call a service on another one."""
        process = self._processes.get(need.id)
        certificate = process.certificate if process else None
        token = problem = ""
        if need.id in self._retired_ids:
            problem = f"{need.id} was retired from the run"
        else:
            if process is None:  # a session inside of a process there has started it
                agent.guests.add(need.id)
            try:
                key = key_of_host(self._run_key, host_of(need.address))
                token = token_for(key, need.address, need.id, certificate.fingerprint if certificate else "")
            except ValueError as error:
                problem = str(error)
        if agent.link:
            with contextlib.suppress(LinkClosed):
                agent.link.send(TokenIs(need.ticket, token, problem))

    def _tell_of_retirement(self, id: str, certificate: ProcessCertificate | None, *, is_cut: bool) -> None:
        """Have all that accept callers hear of it, together with others that go in this moment."""
        with self._lock:
            if id in self._retired_ids:
                return
            self._retired_ids.add(id)
            is_first = not self._just_retired
            self._just_retired.append(RetiredProcess(id, certificate.fingerprint if certificate else "", is_cut))
        if is_first:
            self._loop.call_soon(self._tell_retired)

    def _tell_retired(self) -> None:
        with self._lock:
            news, self._just_retired = Retired(self._just_retired), []
        self._tell_listeners(news)
        if self._parent is None:
            for agent in list(self._fleet.agents.values()):
                if agent.link:
                    with contextlib.suppress(LinkClosed):
                        agent.link.send(news)

    def _tell_listeners(self, news: Retired) -> None:
        self._services.retired(news)
        for call in list(self._retirement_listeners):
            call(news)

    def _heard_of(self, process: _Process, message: Started | NotStarted | Exited | Report) -> None:
        match message:
            case Started():
                process.pid = message.pid
            case NotStarted():
                self._forget_process(message.id)
                process.owner.on_not_started(message.id, message)
            case Exited():
                self._exited(message.id, process, message)
            case Report():
                process.owner.on_report(message.id, message)

    def _exited(self, id: str, process: _Process, exited: Exited) -> None:
        """A process has ended, which is told after its words; those from another host may come later than this news."""
        link = process.link
        if link is None or link.closed or link.stream.carries_fds:
            self._process_gone(id, process, exited, host_lost=False)
            return

        def wait_no_longer() -> None:
            if id in self._processes:
                self._process_gone(id, process, exited, host_lost=False)

        process.exited = exited
        self._loop.call_later(_LAST_WORDS_S, wait_no_longer)

    def _gone_with_agent(self, id: str, process: _Process, why: str) -> None:
        exited = process.exited or gone_with_agent(id, process.pid, why)
        self._process_gone(id, process, exited, host_lost=process.exited is None)

    def _process_gone(self, id: str, process: _Process, exited: Exited, *, host_lost: bool) -> None:
        link, process.link, process.exited = process.link, None, None
        if link:
            self._loop.drain(link)  # what it sent before it died counts
            self._loop.remove_link(link)
        self._forget_process(id, is_cut=host_lost)
        process.owner.on_exited(id, exited, host_lost)

    def _withdraw(self, id: str) -> None:
        process = self._processes.get(id)
        if process and process.agent is None:
            gone = gone_with_agent(id, 0, "it was ended before it had a host")
            self._process_gone(id, process, gone, host_lost=True)

    def _forget_process(self, id: str, *, is_cut: bool = False) -> None:
        self._members.retire(id)
        with self._lock:
            process = self._processes.pop(id, None)
        if process and process.agent:
            self._fleet.release(process.agent, id)
            self._tell_of_retirement(id, process.certificate, is_cut=is_cut)

    def _unlink(self, id: str) -> None:
        process = self._processes.get(id)
        if process and process.link:
            self._loop.remove_link(process.link)

    def _prepared(self, id: str, problem: EngineError | None) -> None:
        process = self._processes.get(id)
        if process is None:
            return
        if problem:
            self._refuse(id, process, str(problem))
            return
        if self._fleet.refusal(self._asked_by(process.owner)):
            self._too_many.append(id)  # and say how many they are when all have been asked for
        else:
            self._place(id)
        self._want_soon()

    def _refuse(self, id: str, process: _Process, why: str) -> None:
        self._forget_process(id)
        process.owner.on_not_started(id, NotStarted(id, why, limit=True))

    def _refuse_too_many(self) -> None:
        """Refuse processes for which there will never be room, the first ones first, until the others have some."""
        too_many, self._too_many = self._too_many, []
        processes = {id: process for id in too_many if (process := self._processes.get(id))}
        asked = {id: self._fleet.refusal(self._asked_by(process.owner)) for id, process in processes.items()}
        for id, process in processes.items():
            if self._fleet.refusal(self._asked_by(process.owner)):
                self._refuse(id, process, asked[id])
            else:
                self._place(id)

    def _asked_by(self, owner: Owner) -> list[Resources]:
        """What an owner wants to have at the same time. Of two with the same name one takes the other's place."""
        all = list(self._processes.values())
        named = {each.spec.name: each.spec for each in all if each.owner is owner and not each.is_leaving}
        return [spec.resources for spec in named.values() if not spec.agent]

    def _place(self, id: str) -> None:
        process = self._processes.get(id)
        if process is None:
            return
        agent = self._host_for(id, process)
        if agent is None:
            return
        process.agent = agent
        spec = process.spec
        message = StartProcess(
            id=id,
            name=spec.name,
            entry=spec.entry,
            secret=process.credentials.secret,
            address=str(self._listener.address),
            environment={**spec.environment, **injection.environment()},
            changes=self._changes(agent, process.environment),
            limits_threads=spec.limits_threads,
            cpus=spec.resources.cpus,
            preload=spec.preload,
            folder=_working_folder(),
            path=tuple(path or os.getcwd() for path in sys.path),
            task_limit_s=spec.task_limit_s,
            gpus=spec.resources.gpus,
            certificate=Certificate.of(process.certificate) if process.certificate else None,
            code=self._code.id if self._code else "",
            code_root=self._code.root if self._code else "",
            bounded=spec.bounded,
            memory_limit_bytes=(spec.resources.memory_bytes or 0) if spec.bounded else 0,
        )
        assert agent.link
        with contextlib.suppress(LinkClosed):  # then the agent is lost, and its processes are placed again
            if self._code and self._code.id not in agent.codes:
                agent.codes.add(self._code.id)
                agent.link.send(PutCode(self._code.id), [self._code.data])
            agent.link.send(message)

    def _variables(self, spec: ProcessSpec) -> Mapping[str, str]:
        """The environment of this process now; the same object while nothing in it changes."""
        now = environment.snapshot()
        if spec.limits_threads:  # a limit that this process has by itself says nothing of those that it starts
            defaults = bootstrap.default_threads.items()
            now = {name: value for name, value in now.items() if (name, value) not in defaults}
        if now != self._last_variables:
            self._last_variables = now
        return self._last_variables

    def _changes(self, agent: Agent, variables: Mapping[str, str]) -> dict[str, environment.Change]:
        if agent.environment is not None:
            return environment.changes_here(variables, agent.environment)
        return environment.changes_elsewhere(variables, self._first_variables)

    def _host_for(self, id: str, process: _Process) -> Agent | None:
        """The agent that hosts a process from now on; None if it has to wait, or that agent is gone."""
        spec = process.spec
        if not spec.agent:
            agent = self._fleet.place(id, spec.resources, len(self._processes), self._beside(process))
            if agent is None:
                self._waiting.append(id)
            return agent
        agent = self._fleet.agents.get(spec.agent)
        if agent is None:
            self._heard_of(process, NotStarted(id, f"{spec.agent} is gone, whose host it should serve"))
            return None
        agent.services.add(id)
        agent.idle_since = None
        return agent

    def _beside(self, process: _Process) -> Agent | None:
        """The host of those that it has to share one with, if one of them has been placed."""
        for other in list(self._processes.values()) if process.spec.beside else ():
            together = other.owner is process.owner and other.spec.beside == process.spec.beside
            if together and other.agent and other.agent.up:
                return other.agent
        return None

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for id in waiting:
            self._place(id)
        self._want_soon()

    def _want_soon(self) -> None:
        """Ask for agents for all that wait, a moment later: processes are asked for one by one."""
        if (self._waiting or self._too_many) and not self._wanting:
            self._wanting = True
            self._gather(_GATHERINGS)

    def _gather(self, num_left: int) -> None:
        known = len(self._processes)
        self._loop.call_later(_GATHER_S, lambda: self._want(known, num_left))

    def _want(self, known: int, num_left: int) -> None:
        if len(self._processes) > known and num_left:  # their user is still asking for more
            self._gather(num_left - 1)
            return
        self._wanting = False
        self._refuse_too_many()
        self._waiting = [id for id in self._waiting if id in self._processes]
        self._fleet.want([self._processes[id].spec.resources for id in self._waiting])

    def _drain(self, agent: Agent, notice: Draining) -> None:
        """A host is about to be taken away: nothing new goes there, and what it does is finished or handed on."""
        if self._closed:  # it is the end of the session that takes it away
            return
        why = agent.draining = escaped(notice.why)
        self._tell_owners(f"{agent.host} is being taken away ({why}); its processes finish what they do")
        for id in list(agent.processes):
            process = self._processes.get(id)
            if process:
                process.owner.on_draining(id, why, notice.left_s)

    def _tell_agent_of(self, id: str, message: msgspec.Struct) -> None:
        process = self._processes.get(id)
        if process and process.agent and process.agent.link:
            with contextlib.suppress(LinkClosed):
                process.agent.link.send(message)

    def on_agent_lost(self, agent: Agent, why: str) -> None:
        """One event, however many processes it takes with it."""
        num = len(agent.processes)
        whose = f"; its {num} process{'es are' if num > 1 else ' is'} replaced" if num else ""
        self._tell_owners(f"{why}{whose}")
        if self._ways:
            self._ways.lost(agent)
        if self._parent is None:
            self._tell_of_retirement(agent.id, agent.certificate, is_cut=True)
            for guest in agent.guests:
                self._tell_of_retirement(guest, None, is_cut=True)
        for id in (*agent.processes, *agent.services):
            process = self._processes.get(id)
            if process:
                self._gone_with_agent(id, process, why)

    def on_happened(self, text: str) -> None:
        self._tell_owners(text)
        self.on_look()

    def on_look(self) -> None:
        if self._waiting:
            self._place_waiting()

    def on_no_agents(self, error: Exception) -> None:
        self._fail(error)

    def show(self, who: str, text: str) -> None:
        """Print whole lines to stderr in the name of a process, after its own output; from the loop's thread."""
        self._console.show(who, text, True, lambda: None)

    def _show(self, agent: Agent, output: Output) -> None:
        process = self._processes.get(output.id)
        who = f"{process.spec.group} {process.spec.rank}@{agent.host}" if process else f"?@{agent.host}"
        if process and process.spec.plain_output and not self._passport:
            who = ""

        def shown() -> None:
            if agent.link:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(OutputSeen(output.size_bytes))

        if self._passport and process:  # the agent of this host does that itself
            folder = self.settings.logs or self.folder / "output"
            self._console.keep(output.text, folder / f"{process.spec.name.replace('/', '_')}.log")
        self._console.show(who, output.text, output.is_error, shown)

    def _tell_owners(self, text: str) -> None:
        text = escaped(text)  # it may quote agents, engines and hosts
        logger.warning(text)
        for owner in {id(process.owner): process.owner for process in list(self._processes.values())}.values():
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


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


_session_numbers = itertools.count(1)
_process_numbers = itertools.count(1)
