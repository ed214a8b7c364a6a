"""Sessions: a launcher's agents and processes on the hosts of an engine, for its pools, programs and trainers.

    Pool, Program, Trainer ──lease──▶ Session ──▶ fleet ──engine──▶ agents ──▶ processes
                                         │ one loop: control links, data links, directory, credentials
                                         ├─ processes     ProcessManager: started, watched, reported to their owners
                                         ├─ blobs         BlobDirectory: large values, once for each host
                                         ├─ output        OutputRelay: the output of processes
                                         ├─ records       RecordRelay: the records of runs that processes write
                                         └─ retirements   Retirements: processes that are refused from now on

There is one session per launcher and engine. It opens when its first user needs a process, and ends a short while after
its last user. Inside a process of a session, a session joins the agent that started the process, instead of starting
one: processes of a pool inside a pool worker are siblings on the same host, owned by that worker.

Owners are told of their processes on the loop's thread and must not block there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropewalk import interpreter_ahead
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine, Reach
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import CodeRefused, EngineError, PoolClosed, SettingsError, StartFailed, TransportError
from ropewalk.html_table import html_box, html_headline, html_table
from ropewalk.processes import bootstrap, environment, open_sessions
from ropewalk.processes.agent_messages import AgentMessages
from ropewalk.processes.agent_record import AgentRecord, Home
from ropewalk.processes.blob_directory import BlobDirectory
from ropewalk.processes.code_sender import CodeSender
from ropewalk.processes.fleet import Fleet
from ropewalk.processes.host_services import HostServices, find_through_agent
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.joined import JoinedAgent
from ropewalk.processes.launcher_record import LauncherRecord
from ropewalk.processes.left_folders import FolderClaim, mark_folder, sweep
from ropewalk.processes.messages import CONTROL, Retired
from ropewalk.processes.output import output_file_name
from ropewalk.processes.output_relay import OutputRelay
from ropewalk.processes.process_manager import Beginning, ProcessManager
from ropewalk.processes.record_relay import RecordRelay
from ropewalk.processes.retirements import Retirements
from ropewalk.processes.rights import guest_mark
from ropewalk.settings import Settings
from ropewalk.settings import current as current_settings
from ropewalk.surroundings import working_folder
from ropewalk.transport import kernel
from ropewalk.transport.credentials import LAUNCHER, AllowList, ProcessCertificate, create_run_folder
from ropewalk.transport.host_listener import HostListener
from ropewalk.transport.link import Link
from ropewalk.transport.loop_with_guests import LoopWithGuests
from ropewalk.transport.passport import Passport
from ropewalk.transport.tokens import host_of, key_of_host, new_key, token_for

if TYPE_CHECKING:  # only a run of several hosts imports these
    from ropewalk.processes.code_bundle import CodeBundle
    from ropewalk.processes.relay_routing import RelayRoute, RelayRouter

_END_S = 20.0
"""A second call of `close` waits at most this long (seconds) for the first one."""
_RECORDS_S = 2.0
"""Timeout in seconds for the last records of processes when the session ends."""
_REMOVALS, _REMOVAL_PAUSE_S = 20, 0.01
"""How many times, and at which interval in seconds, the folder of a session is removed until it is gone."""
_LOOK_UP_S = 1.0
"""A thread that waits for a service checks this often (seconds) whether the session has ended."""


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
        self.folder: Path = Path()
        self.run_id: str = ""
        self._parent = bootstrap.current
        self._lock = threading.RLock()
        self._users = 0
        self._num_leases = 0
        self._kept_open = False
        self._opened = False
        self._closed = False
        self._retired = False
        """Whether it is about to close because it is idle, and cannot be leased any more."""
        self._ended = threading.Event()
        self._members = AllowList()
        self._passport: Passport | None = None
        self._ways: RelayRouter | None = None
        self._record: LauncherRecord | None = None
        self._claim: FolderClaim | None = None
        self._code_sender: CodeSender | None = None
        self._when_closed: list[Callable[[], object]] = []
        self._output_groups: dict[str, tuple[dict[int, int], Iterator[int]]] = {}
        """The numbers of the owners of groups of each name; see `output_group`."""
        self._run_key = new_key()
        """The key from which the keys of all services of the run follow; unused inside a process of another session."""
        # Set by `_open`: making a session opens no descriptors.
        self.loop: LoopWithGuests
        """The loop on which owners are called."""
        self.processes: ProcessManager
        self.blobs: BlobDirectory
        self.output: OutputRelay
        self.records: RecordRelay
        self.retirements: Retirements
        self._fleet: Fleet | JoinedAgent
        self._services: HostServices
        self._messages: AgentMessages
        self._listener: HostListener

    # For users

    def __enter__(self) -> Session:
        self.lease()
        with self._lock:
            self._kept_open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "new"
        num = len(self.processes) if self._opened else 0
        return f"<Session engine={self.settings.engine!r} {state}, {num} processes>"

    def _repr_html_(self) -> str:
        state = "closed" if self.closed else "running" if self._opened else "new"
        hosts = self.hosts() if state == "running" else []
        num = len(self.processes) if self._opened else 0
        facts = [("engine", self.settings.engine), ("hosts", str(len(hosts))), ("processes", str(num))]
        rows = [(agent.host, str(agent.pid or ""), agent.draining) for agent in hosts]
        table = html_table(("host", "pid of its agent", "takes no more, because"), rows, right={1}) if rows else ""
        return html_box(html_headline("session", state, facts), table)

    @property
    def closed(self) -> bool:
        """Whether it has ended, or belongs to the process from which this one was forked."""
        return self._closed or self._retired or self.pid != os.getpid()

    def hosts(self) -> list[AgentRecord]:
        """Return the agents that are up now."""
        return [agent for agent in self._agents() if agent.link]

    def agent_pids(self) -> list[int]:
        """Return the process ids of the agents of this session."""
        return [agent.pid for agent in self._agents() if agent.pid]

    def ways(self) -> list[RelayRoute]:
        """Return the pairs of hosts that reach each other only through a relay, and the relay of each pair."""
        return self._ways.known() if self._ways else []

    def close(self) -> None:
        """End every process and agent and remove the run folder; may be called twice, but not from the loop.

        Pools and programs that still use it fail with `PoolClosed`, so that no caller waits for them in vain.
        """
        if self.pid != os.getpid():
            return
        with interrupts_deferred, self._lock:
            first, self._closed = not self._closed, True
        if not first:
            # It may be ending because it is idle, in a thread that the end of the interpreter would cut short.
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

    def kill(self) -> None:
        """End everything at once, without notice and without waiting for last messages."""
        if self._opened and self.pid == os.getpid():
            self._fleet.kill()
            self._remove_folder()

    # For pools, programs, and other owners of processes

    @property
    def has_failed(self) -> bool:
        """Whether it can no longer start processes."""
        return self._opened and self.processes.failure is not None

    @property
    def default_size(self) -> int:
        """How many processes a pool has by default: the CPUs that this process may use."""
        return usable_cpus() if self._parent is None else max(1, int(self._parent.cpus))

    @property
    def passport(self) -> Passport | None:
        """The passport of this process in a run of several hosts; None if there is one host."""
        return self._passport if self._parent is None else self._parent.passport

    def lease(self) -> None:
        """Use the session: it stays open until as many `release` calls were made.

        Raises:
            PoolClosed: the session has ended, or belongs to the process from which this one was forked.
            StartFailed: no agent could be asked for, or none stays up.
        """
        with interrupts_deferred, self._lock:
            if self.closed:
                raise PoolClosed("this session has ended (or belongs to the process this one was forked from)")
            if self._opened:
                self.processes.check()
            self._users += 1
            self._num_leases += 1
            if not self._opened:
                try:
                    self._open()
                except BaseException:
                    self._users -= 1
                    self.close()  # the next pool tries with another one
                    interpreter_ahead.discard()
                    raise

    def release(self) -> None:
        """Give back a lease; the session ends a short while after its last user."""
        with interrupts_deferred, self._lock:
            self._users -= 1
            if self._users == 0 and not self._kept_open and not self.closed:
                last = self._num_leases
                idle_s = self.settings.session_idle_s
                self.loop.call_soon(lambda: self.loop.call_later(idle_s, lambda: self._end_if_idle(last)))

    def find_service(self, entry: str, unanswered: str = "") -> str:
        """Return the address of the process that serves this host with `entry`.

        In a launcher, that is a process that serves any host.

        Waits until it is up; a session that ends meanwhile is an error.

        Args:
            entry: the function that the process runs.
            unanswered: address at which it does not answer any more: waits for the next one, and returns the same
                address if the process there has not ended.

        Raises:
            StartFailed: it could not be started.
            TransportError: the agent of this host is gone.
        """
        if self._parent:
            return find_through_agent(self._parent, entry, unanswered)
        found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

        def tell(address: str, problem: str) -> None:
            found.put((address, problem))

        self.loop.call_soon(lambda: self._services.ask(entry, None, tell, unanswered))
        while True:
            with contextlib.suppress(queue.Empty):
                address, problem = found.get(timeout=_LOOK_UP_S)
                break
            self.processes.check()  # a session that has ended meanwhile does not answer
            if self.closed:
                raise StartFailed("this session has ended")
        if problem:
            raise StartFailed(problem)
        return address

    def own_tokens(self) -> Callable[[str], str]:
        """Return a function that finds the token by which the launcher authenticates to the service at an address.

        It works after a fork, too.
        """
        key, certificate = self._run_key, self._passport.certificate if self._passport else None
        fingerprint = certificate.fingerprint if certificate else ""
        return lambda address: token_for(key_of_host(key, host_of(address)), address, LAUNCHER, fingerprint)

    def settle_records(self, timeout_s: float) -> bool:
        """Wait until the records that processes have written so far were handled; see `RecordRelay.settle`."""
        return not self._opened or self.loop.is_here or self.records.settle(timeout_s)

    def output_file(self, process: str) -> Path:
        """Return the file on this host that has the output of a process, by its name, if output is kept here."""
        return self._output_folder / output_file_name(process)

    def output_group(self, owner: int, group: str) -> str:
        """Return under which name the output of a group of processes is kept.

        Args:
            owner: the number of the owner, one of `owner_numbers`.
            group: the name of the group. Of two owners with such a group, as two pools or two programs with nodes of
                one name are, the second one gets another name: its lines must not stand between those of the first.
        """
        if self._parent:  # below the process that we are in: others like it may have groups of this name, too
            outer = self._parent.output or self._parent.name
            group = f"{outer}/{group.removeprefix(f'{self._parent.name}/')}"
        owners, numbers = self._output_groups.setdefault(group, ({}, itertools.count(1)))
        number = owners.get(owner) or owners.setdefault(owner, next(numbers))  # from any thread, without a lock
        return group if number == 1 else f"{group}~{number}"  # no node or pool is called so

    @property
    def _output_folder(self) -> Path:
        return Path(self.settings.logs or self.folder / "output")

    def when_closed(self, call: Callable[[], object]) -> None:
        """Arrange for a call to be made, once, when the session has ended."""
        with self._lock:
            if not self._closed:
                self._when_closed.append(call)
                return
        call()

    def forget(self) -> None:
        """In a forked child: close our copies of descriptors; the session stays with the parent."""
        self._closed = True
        if self._opened:
            self._listener.forget()
            if self._ways:
                self._ways.forget()
            if self._record:
                self._record.forget()
            if self._claim:
                self._claim.close()
            self.loop.forget()

    # Opening

    def _open(self) -> None:
        if self._parent is None:
            self.run_id = interpreter_ahead.new_run_id(self.settings.engine)
            self.folder = create_run_folder(self.settings.run_folder)
            socket_name = "launcher.sock"
            kernel.raise_descriptor_limit()
        else:
            self.run_id = self._parent.credentials.run_id
            self.folder = Path(self._parent.folder)
            socket_name = f"s{os.getpid()}-{next(_session_numbers)}.sock"
        self.loop = LoopWithGuests()
        try:
            self._put_together(str(self.folder / socket_name))
            self._opened = True
            if self._passport:
                self._record = LauncherRecord(self.run_id, self.settings.engine)
                if self._parent is None:  # no agent on this host removes the folder if this process is killed
                    self._claim = FolderClaim(self.folder)
                    sweep([self.folder.parent])
            elif self._parent is None:
                mark_folder(self.folder)
            self.loop.call_soon(self._listener.open)
            self.loop.start("ropewalk-session")
            self.output.open()
            open_sessions.add(self)
            self._fleet.open()
        except (OSError, EngineError, SettingsError, TransportError, CodeRefused) as error:
            if not self._opened:
                self.loop.forget()
                self._remove_folder()
            if not isinstance(error, OSError) or isinstance(error, TransportError):
                raise
            raise StartFailed(f"the session could not be opened in {self.folder}: {error}") from error

    def _put_together(self, socket: str) -> None:
        """Make the parts, which need each other: the fleet comes last, and is then made known to those before it."""
        parent = self._parent
        issue: Callable[[str], ProcessCertificate] | None = None
        engine: Engine | None = None
        if parent is None:
            beginning = Beginning()
            engine = make_engine(self.settings.engine, self.settings.engine_options)
            if engine.reach is not Reach.HERE:
                beginning, issue = self._prepare_for_hosts(engine)
        else:
            beginning = Beginning(id_end=guest_mark(parent.passport.host if parent.passport else ""))
        self._listener = HostListener(
            self.loop, socket, self._passport, self.run_id, self._members, CONTROL, self._linked
        )
        home = Home(
            self.run_id, self.folder, self.settings, self._listener.address, self._passport, issue, self._run_key
        )
        self.retirements = Retirements(self.loop)
        self.records = RecordRelay(self._agents)
        self.processes = ProcessManager(home, self.loop, self._members, self.retirements, self.records, beginning)
        self.blobs = BlobDirectory(self.processes, self._agents, self._run_key)
        self.output = OutputRelay(self._output_folder if self._passport else None, is_bounded=not self.settings.logs)
        self._services = HostServices(self)
        self.processes.add_owner(self._services)
        self.retirements.listen(self._services.retired)
        if parent is None:
            self.retirements.pass_on(self._tell_agents)
        self._messages = messages = AgentMessages(
            home,
            self.processes,
            self._services,
            self.retirements,
            self.output,
            self.records,
            self.blobs,
            is_joined=parent is not None,
        )
        if engine is None:
            assert parent
            self._fleet = JoinedAgent(parent, self.loop, messages)
        else:
            self._fleet = self._make_fleet(engine, home, messages)
        if beginning.code:
            self._code_sender = CodeSender(beginning.code, self.blobs)
        self.processes.use(self._fleet, self._code_sender)

    def _make_fleet(self, engine: Engine, home: Home, messages: AgentMessages) -> Fleet:
        """Return the fleet of agents; those of other hosts, which may not reach each other, get relays."""
        fleet = Fleet(engine, home, self.loop, self._members, messages)
        if self._passport:
            from ropewalk.processes.relay_routing import RelayRouter

            tell = self.processes.tell_owners
            self._ways = messages.ways = RelayRouter(fleet, self.loop, self._listener, self._passport.ip, tell)
            self._passport = msgspec.structs.replace(self._passport, detour=self._ways.reach)
        return fleet

    def _prepare_for_hosts(self, engine: Engine) -> tuple[Beginning, Callable[[str], ProcessCertificate] | None]:
        """Prepare to be reached by other hosts, and to send them the project's files."""
        variables = environment.at_beginning()
        ip, issue = "", None
        if engine.reach is Reach.NETWORK:
            # Only a run of several hosts imports these.
            from ropewalk.transport.authority import RunAuthority
            from ropewalk.transport.interfaces import choose_advertised

            ip = choose_advertised(self.settings.advertise, engine.hosts())
            issue = RunAuthority.create(self.run_id).issue
        self._passport = Passport(LAUNCHER, ip, issue(LAUNCHER) if issue else None)
        code: CodeBundle | None = None
        if self.settings.code == "bundle":
            from ropewalk.processes.code_bundle import find_project, make_bundle

            main = getattr(sys.modules.get("__main__"), "__file__", None)
            project = find_project(Path(main) if main else None, Path(working_folder()))
            code = make_bundle(project, self.settings.code_limit)
        return Beginning(variables=variables, code=code), issue

    # While it is open

    @property
    def has_queued_jobs(self) -> bool:
        """Whether jobs of this session wait in the queue of the cluster manager, which decides how long."""
        return any(agent.job and agent.link is None and agent.running_since is None for agent in self._agents())

    def _agents(self) -> list[AgentRecord]:
        return list(self._fleet.agents.values()) if self._opened else []

    def _linked(self, id: str, link: Link) -> None:
        agent = self._fleet.agents.get(id)
        if agent:
            self._fleet.linked(agent, link)
        else:
            self.processes.linked(id, link)

    def _tell_agents(self, news: Retired) -> None:
        for agent in self._agents():
            if agent.link:
                agent.link.send_if_open(news)

    # Ending

    def _end_if_idle(self, last: int) -> None:
        """End the session if it has not been used since a lease was given back; `last` is its number."""
        with self._lock:
            if self._users == 0 and last == self._num_leases and not self._kept_open and not self.closed:
                self._retired = True
                threading.Thread(target=self.close, name="ropewalk-session-end", daemon=True).start()

    def _end(self) -> None:
        # First, so that the ends of its processes are not taken for deaths, and the processes not replaced.
        failure = PoolClosed("the session was closed while a pool or a program still used it; end these first")
        self._messages.is_closing = True
        if self.records.has_listeners:
            self.settle_records(_RECORDS_S)
        self._on_loop(lambda: self.processes.fail(failure))
        is_all_over = self._fleet.close()
        if self._record and is_all_over:
            self._record.close()
        elif self._record:  # it stays, so that `doctor --leftovers` finds jobs that are left
            self._record.forget()
        self._on_loop(lambda: self.processes.all_gone("the session was closed"))
        self._on_loop(self._listener.close)
        if self._ways:
            self._on_loop(self._ways.close)
        self.blobs.close()
        if self._code_sender:
            self._on_loop(self._code_sender.close)
        self.loop.stop()
        if self.loop.thread:
            self.loop.thread.join(5.0)
        self.output.close()

    def _on_loop(self, call: Callable[[], object]) -> None:
        """Have the loop make a call, and wait for it, but not for a loop that hangs."""
        called = threading.Event()
        self.loop.call_soon(call)
        self.loop.call_soon(called.set)
        called.wait(1.0)

    def _remove_folder(self) -> None:
        if self._parent is None and self.folder != Path():
            # What was killed a moment ago, or a thread of this process, may still put a file there.
            for _ in range(_REMOVALS):
                shutil.rmtree(self.folder, ignore_errors=True)
                if not self.folder.exists():
                    break
                time.sleep(_REMOVAL_PAUSE_S)
            if self._claim:
                self._claim.close()


_session_numbers = itertools.count(1)
