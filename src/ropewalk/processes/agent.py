"""The agent: hosts the processes of one host share, and ends with its launcher.

    launcher ◀── control link ──▶ agent ◀── channel ──▶ fork servers
                                    │  ├─ worker   (its child: sees the death, holds its pipes and its page)
       nested session ◀── link ─────┘  └─ worker

The launcher may be on another host. Then the agent has a folder of its own, speaks TLS with the launcher or is dialled
by it (`agent_connect.py`), unpacks the project's files, ends when it receives nothing from the launcher any more, and
reports when the host is about to be taken away.

One loop in one thread; short threads dial other hosts, fetch blobs and unpack code. It never unpickles anything and
never runs user code. It starts processes through a fork server, relays their output and their records, samples their
resource use, ends processes that hang or were stopped, holds the host's blobs, and on a death reports everything known
of the cause. The process that asked for a process is its owner: when the owner is gone, its processes are ended. The
first owner is the launcher; without it the agent ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec

from ropewalk import injection
from ropewalk.errors import RopewalkError, TransportRefused
from ropewalk.processes.agent_children import AgentChildren
from ropewalk.processes.blob_exchange import BlobExchange
from ropewalk.processes.blob_shelf import BlobShelf
from ropewalk.processes.bounds import Bounds
from ropewalk.processes.code_shelf import CodeShelf
from ropewalk.processes.environment import sendable_variables, snapshot
from ropewalk.processes.fork_channel import ForkChannel, ForkServer, begin_fork_server
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.launcher_watch import LauncherWatch
from ropewalk.processes.messages import (
    CONTROL,
    REFUSED_EXIT_CODE,
    AgentBoot,
    AgentUp,
    BlobAbsent,
    BlobPiece,
    Draining,
    DropBlob,
    Exited,
    FetchBlob,
    FlushRecords,
    ForkReply,
    ForkRequest,
    GetBlob,
    GetMade,
    HostEvent,
    NeedService,
    NeedToken,
    NotStarted,
    OutputSeen,
    Peek,
    Ping,
    Pong,
    PutBlob,
    PutCode,
    Recall,
    RecordsSeen,
    Retired,
    RetiredProcess,
    Samples,
    ServiceAt,
    SetRequest,
    ShutdownMessage,
    SignalProcess,
    Started,
    StartProcess,
    TaskReport,
    TokenIs,
)
from ropewalk.processes.out_of_memory import MemoryEvidence, count_kills
from ropewalk.processes.output_forwarder import OutputForwarder
from ropewalk.processes.page import REQUEST
from ropewalk.processes.process_watch import LIMIT_CHECK_S, SAMPLE_S, ProcessWatch
from ropewalk.processes.record_forwarder import RecordForwarder
from ropewalk.processes.rights import TO_AGENT, may_say
from ropewalk.processes.service_questions import ServiceQuestions
from ropewalk.surroundings import DOOR_VARIABLE
from ropewalk.transport import kernel
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import AllowList, Credentials, create_run_folder
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.server import UnixListener
from ropewalk.transport.tokens import key_of_socket, socket_of

if TYPE_CHECKING:
    from ropewalk.processes.agent_connect import AgentConnector
    from ropewalk.processes.left_folders import FolderClaim

DRAIN_S = 25.0
"""Time that processes get on a host that is about to be taken away, in seconds; Slurm and Kubernetes give 30 s."""
_ROOM_BYTES = 1 << 20
"""Free space that an agent needs on another host than the launcher's, for the project's files and its output."""
_END_S = 1.0
"""Timeout within which an agent that ends waits for its last descendants to end, in seconds."""


class HostAgent:
    """One agent and the processes that it hosts.

    Args:
        boot: what its launcher has told it.
        door: the path at which it listens, if the launcher comes to it by its engine.
        fork_server: the fork server of processes that preload nothing, if it has begun.
    """

    def __init__(self, boot: AgentBoot, door: str, fork_server: ForkServer | None) -> None:
        self._boot = boot
        self._host = platform.node()
        self._door = door if boot.door else ""
        self._folder = boot.folder or os.path.dirname(self._door) or str(create_run_folder())
        self._claim = None if boot.folder else _claim(self._folder)
        self._loop = Loop()
        self._members = AllowList()
        self._processes: dict[str, HostedProcess] = {}
        self._fork_channels: dict[tuple[tuple[str, ...], tuple[str, ...]], ForkChannel] = {}
        self._fork_server = fork_server
        self._blobs = BlobShelf(self._loop.call_later)
        self._exchange = BlobExchange(
            boot, self._loop, self._blobs, lambda message: self._tell(self._launcher, message)
        )
        self._output = OutputForwarder(self._loop, self._processes, self._host_event)
        self._records = RecordForwarder(self._loop, self._processes)
        self._overbearing: WeakSet[Link] = WeakSet()
        """Links that have sent a message for which they have no right."""
        self._own_name = "" if boot.launcher_pid else boot.agent_id
        """Name of this host in addresses; empty in a run of one host."""
        self._questions = ServiceQuestions(
            boot.service_key, self._own_name, self._processes, lambda message: self._tell(self._launcher, message)
        )
        self._children = AgentChildren(self._processes, self._fork_channels.values())
        self._watch = ProcessWatch(self._loop, self._children)
        self._launcher_watch = LauncherWatch(self._loop, boot.launcher_pid)
        self._memory = MemoryEvidence(count_kills(), time.monotonic())
        self._code = CodeShelf(Path(self._folder), self._loop.call_soon)
        self._bounds = Bounds.here(self._host)
        self._meeting: AgentConnector | None = None
        self._draining = False
        self._launcher: Link | None = None
        self._told_to_end = False
        self._listener = UnixListener(
            self._loop,
            os.path.join(self._folder, f"{boot.agent_id}.sock"),
            boot.run_id,
            self._members,
            CONTROL,
            self._serve,
        )
        self._actions = self._handlers()

    def _handlers(self) -> dict[type, Callable[[Link, Received], None]]:
        """Return what is done about each message."""
        return {
            StartProcess: self._start_process,
            SignalProcess: self._signal_process,
            SetRequest: self._set_request,
            Recall: self._recall,
            Peek: self._peek,
            PutBlob: lambda link, received: self._blobs.put(link, received),
            DropBlob: self._drop_blob,
            FetchBlob: self._exchange.fetch,
            BlobPiece: self._exchange.piece,
            BlobAbsent: self._exchange.absent,
            GetBlob: lambda link, received: self._blobs.get(link, received.message.id),
            GetMade: lambda link, received: self._blobs.get_made(link, received.message.id),
            OutputSeen: lambda link, received: self._output.seen(link, received.message.size_bytes),
            RecordsSeen: lambda link, received: self._records.seen(link, received.message.size_bytes),
            FlushRecords: lambda link, received: self._records.flush(link, received.message.number),
            Ping: lambda link, received: self._tell(link, Pong()),
            PutCode: self._put_code,
            ShutdownMessage: self._shut_down,
            NeedService: lambda link, received: self._questions.need_service(link, received.message),
            ServiceAt: lambda _link, received: self._questions.answered(received.message),
            NeedToken: lambda link, received: self._questions.need_token(link, received.message),
            TokenIs: lambda _link, received: self._questions.answered(received.message),
            Retired: self._retired,
        }

    def run(self) -> None:
        """Serve until the launcher is gone."""
        kernel.adopt_orphans()
        kernel.name_thread("rw-agent")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._loop.call_soon(lambda: self._asked_to_leave(number)))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: self._loop.call_soon(self._reap))
        try:
            self._fork_channel((), (), self._fork_server)
            self._loop.call_soon(self._reap)  # it may have ended before this process took notice of that
            self._join_launcher()
            self._loop.call_later(SAMPLE_S, self._sample)
            self._loop.run()
        finally:  # also if the launcher is gone before we connected to it
            self._end_everything()

    def _join_launcher(self) -> None:
        self._launcher_watch.begin()
        self._listener.open()
        if self._boot.launcher_pid:
            credentials = Credentials(self._boot.run_id, self._boot.agent_id, self._boot.secret)
            self._met(dial(parse_address(self._boot.address), credentials, CONTROL))
            return
        from ropewalk.processes.agent_connect import AgentConnector  # only agents of other hosts need it

        self._meeting = AgentConnector(self._boot, self._loop, self._folder, self._door, self._met)
        self._actions |= self._meeting.actions
        self._meeting.begin()

    def _met(self, launcher: Link) -> None:
        """Take over the control link to the launcher."""
        if self._launcher:  # it connected twice: the first link stays
            launcher.close()
            return
        self._launcher = launcher
        self._serve("launcher", launcher)
        meeting = self._meeting
        up = AgentUp(os.getpid(), self._host)
        if self._boot.launcher_pid:
            up = msgspec.structs.replace(up, environment=sendable_variables(snapshot()))
        if meeting:
            meeting.launcher = launcher
            blobs = self._exchange.open(meeting.ip)
            up = msgspec.structs.replace(up, ip=meeting.ip, blobs=blobs)
            self._launcher_watch.begin_lease(launcher, self._boot.lease_s)
        self._tell(launcher, up)

    # Owners

    def _serve(self, _who: str, link: Link) -> None:
        self._loop.add_link(link, lambda received: self._act(link, received), lambda _why: self._owner_gone(link))

    def _act(self, link: Link, received: Received) -> None:
        self._launcher_watch.heard(link)
        message = received.message
        if may_say(TO_AGENT, message, is_launcher=link is self._launcher, concerns=partial(self._is_owned_by, link)):
            self._actions[type(message)](link, received)
        elif link not in self._overbearing:
            self._overbearing.add(link)
            self._host_event(f"{link.peer} said {type(message).__name__}, which it may not; it was not acted on")

    def _is_owned_by(self, link: Link, id: str) -> bool:
        process = self._processes.get(id)
        return process is None or process.owner is link

    def _owner_gone(self, link: Link) -> None:
        if link is self._launcher:
            self._loop.stop()
            return
        for process in [process for process in self._processes.values() if process.owner is link]:
            self._children.kill(process, "its owner is gone")
        self._blobs.forget(link)
        self._output.forget(link)
        self._records.forget(link)

    def _shut_down(self, link: Link, _received: Received | None) -> None:
        self._told_to_end = self._told_to_end or link is self._launcher
        self._owner_gone(link)

    def _asked_to_leave(self, number: int) -> None:
        """Handle a signal to the agent itself: on the launcher's host an order, elsewhere the engine's notice."""
        if self._launcher is None or self._boot.launcher_pid:
            self._loop.stop()
        elif not self._draining:
            self._draining = True
            why = f"the engine sent {signal.Signals(number).name}"
            self._tell(self._launcher, Draining(why, DRAIN_S))
            self._loop.call_later(DRAIN_S, self._loop.stop)
            self._leave_when_idle()

    def _leave_when_idle(self) -> None:
        if self._processes:
            self._loop.call_later(LIMIT_CHECK_S, self._leave_when_idle)
        else:
            self._shut_down(self._launcher, None)  # type: ignore[arg-type]

    def _tell(self, link: Link | None, message: msgspec.Struct) -> None:
        if link:
            link.send_if_open(message)

    # Starting

    def _start_process(self, link: Link, received: Received) -> None:
        start: StartProcess = received.message
        if start.id in self._processes:
            self._host_event(f"{link.peer} wanted to start {start.id}, which runs already; it was not acted on")
            return
        if len(self._processes) >= self._boot.max_processes:
            self._tell(link, NotStarted(start.id, self._crowded(start), limit=True))
            return
        if refusal := self._bounds.refusal(start):
            self._tell(link, NotStarted(start.id, refusal, limit=True))
            return
        try:
            process = HostedProcess(start, link, self._output_folder(), is_bounded=not self._boot.log_folder)
        except OSError as error:
            why = f"the agent cannot open what {start.name} needs: {error}{kernel.what_to_raise(error)}"
            self._tell(link, NotStarted(start.id, why))
            return
        self._processes[start.id] = process
        self._members.admit(start.id, start.secret)
        bound = self._bounds.give(start)
        self._code.when_there(start.code, lambda problem: self._fork(process, bound, problem))

    def _fork(self, process: HostedProcess, start: StartProcess, problem: str) -> None:
        """Fork a process, with its request in terms of this host.

        These are its CPUs and GPUs, and the place of the project's files here.
        """
        if reason := problem or process.ended_by:
            self._forget(process)
            self._tell(process.owner, NotStarted(start.id, reason))
            return
        start = self._code.arrange(start)
        request = ForkRequest(
            start,
            self._boot.run_id,
            str(self._listener.address),
            os.getpid(),
            self._host,
            service_key=key_of_socket(self._boot.service_key, socket_of(start.id)),
            host_id=self._own_name,
            ip=self._meeting.ip if self._meeting else "",
        )
        path = start.path if start.preload else ()
        self._fork_channel(start.preload, path).request(request, process.child_fds())

    def _put_code(self, _link: Link, received: Received) -> None:
        message: PutCode = received.message
        if message.blob:
            self._code.expect(message.id)
            self._blobs.when_here(message.blob, lambda data, problem: self._code.put(message.id, data, problem))
        else:
            self._code.put(message.id, received.parts[0])

    def _drop_blob(self, link: Link, received: Received) -> None:
        if link is self._launcher:
            self._exchange.drop(received.message.id)
        self._blobs.drop(link, received.message.id)

    def _retired(self, launcher: Link, received: Received) -> None:
        """Pass retirements on to sessions inside of processes, which have services that must know."""
        self._exchange.retired(received.message)
        for owner in {process.owner for process in self._processes.values()} - {launcher}:
            self._tell(owner, received.message)

    def _crowded(self, start: StartProcess) -> str:
        counts: dict[str, int] = {}
        for process in self._processes.values():
            pool = process.start.name.rpartition(".")[0] or process.start.name
            counts[pool] = counts.get(pool, 0) + 1
        listing = ", ".join(f"{pool} has {count}" for pool, count in sorted(counts.items()))
        return (
            f"{start.name} would be process {len(self._processes) + 1} on {self._host}, whose limit is "
            f"{self._boot.max_processes} ({listing}). Pools inside pools multiply: make the inner or the outer pool "
            "smaller, or raise the setting max_processes"
        )

    def _output_folder(self) -> Path:
        return Path(self._boot.log_folder or os.path.join(self._folder, "output"))

    def _fork_channel(
        self, preload: tuple[str, ...], path: tuple[str, ...], begun: ForkServer | None = None
    ) -> ForkChannel:
        channel = self._fork_channels.get((preload, path))
        if channel is None:
            channel = ForkChannel(preload, path, self._loop, self._forked, self._host_event, begun)
            self._fork_channels[preload, path] = channel
        return channel

    def _host_event(self, text: str) -> None:
        self._tell(self._launcher, HostEvent(text))

    def _forked(self, reply: ForkReply) -> None:
        process = self._processes.get(reply.id)
        if process is None:
            return
        if not reply.pid:
            self._forget(process)
            self._tell(process.owner, NotStarted(reply.id, reply.reason))
            return
        self._children.started(process, reply.pid)
        process.close_child_fds()
        self._output.begin(process)
        self._records.begin(process)
        self._watch.begin(process)
        self._tell(process.owner, Started(reply.id, reply.pid))
        for number in process.early_signals:
            with contextlib.suppress(ProcessLookupError):
                os.kill(reply.pid, number)
        if process.ended_by:
            self._children.kill(process, process.ended_by)  # the request to end it came before its pid was known
        exit_code = self._children.early_exit(reply.pid)
        if exit_code is not None:
            self._ended([(process, exit_code)])
        self._children.forks_answered()

    # Ending

    def _signal_process(self, link: Link, received: Received) -> None:
        process = self._processes.get(received.message.id)
        if process is None:
            return
        if received.message.signal == signal.SIGKILL:
            self._children.kill(process, "its owner ended it")
        elif process.pid is None:
            process.early_signals.append(received.message.signal)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, received.message.signal)

    def _set_request(self, _link: Link, received: Received) -> None:
        process = self._processes.get(received.message.id)
        if process:
            process.page.words[REQUEST] = received.message.word

    def _reap(self) -> None:
        self._ended(self._children.reap())

    def _ended(self, ended: Sequence[tuple[HostedProcess, int]]) -> None:
        """Handle the end of processes, with their exit codes: end their descendants, and tell their owners."""
        if ended:
            # First, because descendants may go on printing without end. All together: it goes through the processes of
            # the host.
            self._children.end_groups([process for process, _ in ended])
        killed = [process for process, code in ended if code == -signal.SIGKILL and not process.ended_by]
        out_of_memory = self._memory.explain(len(killed), count_kills(), time.monotonic()) if killed else ""
        for process, code in ended:
            self._report_end(process, code, out_of_memory if process in killed else "")

    def _report_end(self, process: HostedProcess, exit_code: int, out_of_memory: str) -> None:
        assert process.pid is not None
        self._output.finish(process)
        self._records.finish(process)
        for owned in [each for each in self._processes.values() if each.owner.peer == process.start.id]:
            self._children.kill(owned, "its owner is gone")  # even if a child of the owner keeps the link open
        page = process.page.report(ended=True)
        exited = Exited(
            id=process.start.id,
            pid=process.pid,
            exit_code=exit_code,
            out_of_memory=out_of_memory,
            ended_by=process.ended_by,
            timed_out=process.overran is not None and process.overran == page.current,
            ran_s=time.monotonic() - process.started,
            last_output=process.last_output(),
            page=page,
        )
        self._forget(process)
        if injection.visit and injection.visit("agent.before_exit_report", process.start.name):
            return
        self._tell(process.owner, exited)

    def _forget(self, process: HostedProcess) -> None:
        self._bounds.take_back(process.start.id)
        self._processes.pop(process.start.id, None)
        self._children.forget(process)
        self._members.retire(process.start.id)
        if process.owner is not self._launcher:
            self._tell(self._launcher, Retired([RetiredProcess(process.start.id)]))
        process.close()

    def _end_everything(self) -> None:
        self._children.end_all(_END_S)
        self._code.close()
        self._exchange.close()
        if self._meeting:
            self._meeting.close()
        if not self._boot.folder or (not self._told_to_end and self._launcher_watch.ends_soon()):
            import shutil  # the usual agent needs none of it

            shutil.rmtree(self._folder, ignore_errors=True)  # ours, or no other process is left to do it
        if self._claim:
            self._claim.close()

    # Watching

    def _sample(self) -> None:
        now = time.monotonic()
        samples = self._watch.sample(now)
        if self._launcher:
            samples.setdefault(self._launcher, [])
        for link, those in samples.items():
            self._tell(link, Samples(those))
        self._memory.look(count_kills(), now)
        self._launcher_watch.look(now)
        self._loop.call_later(SAMPLE_S, self._sample)

    def _recall(self, link: Link, received: Received) -> None:
        recall: Recall = received.message
        process = self._processes.get(recall.id)
        if process:
            first = process.page.fence(recall.until, everything=recall.everything)
            self._tell(link, TaskReport(recall.id, process.page.report(), first, recall.until))

    def _peek(self, link: Link, received: Received) -> None:
        process = self._processes.get(received.message.id)
        if process:
            self._tell(link, TaskReport(received.message.id, process.page.report(), 0, 0))


def _claim(folder: str) -> FolderClaim:
    """Claim the agent's own folder, so that the next agent here removes it should this one be killed.

    And remove what agents before it have left. Both before it joins: removing large projects takes a while, in which
    its loop would answer nobody.

    Raises:
        TransportRefused: there is no room for the project's files, without which every start here would fail.
    """
    from ropewalk.processes.left_folders import FolderClaim, sweep  # an agent on the launcher's host needs neither

    sweep([Path(folder).parent])
    import shutil

    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < _ROOM_BYTES:  # a file system in memory without a limit says 0 for both
        shutil.rmtree(folder, ignore_errors=True)
        raise TransportRefused(f"the disk of {folder} is full ({disk.free >> 10} KiB free); make room there")
    return FolderClaim(Path(folder))


def main() -> None:
    """Run an agent: its boot configuration comes on standard input, so that no secret is in argv.

    What needs none of it is done before: an agent that was begun ahead of its session waits for that.
    """
    injection.load("agent")
    kernel.raise_descriptor_limit()
    door = os.environ.pop(DOOR_VARIABLE, "")
    problem = kernel.what_keeps_processes_from_running()
    fork_server = None
    if not problem:
        with contextlib.suppress(OSError):  # it is tried again, and reported, when it is needed
            fork_server = begin_fork_server((), ())
    if not (data := sys.stdin.buffer.read()):  # no session has come about
        return
    boot = msgspec.json.decode(data, type=AgentBoot)
    try:
        if problem:
            raise TransportRefused(problem)
        HostAgent(boot, door, fork_server).run()
    except TransportRefused as error:
        print(f"this agent on {platform.node()} cannot run: {error}", file=sys.stderr)
        sys.exit(REFUSED_EXIT_CODE)
    except (RopewalkError, OSError) as error:  # its launcher shows it to the user as the last output of the agent
        sys.exit(f"this agent on {platform.node()} cannot run: {error}")
