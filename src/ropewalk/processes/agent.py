"""The agent: hosts the processes of one host share, and ends with its launcher.

    launcher ◀── control link ──▶ agent ◀── channel ──▶ fork servers
                                    │  ├─ worker   (its child: sees the death, holds its pipes and its page)
       nested session ◀── link ─────┘  └─ worker

The launcher may be on another host. Then the agent has a folder of its own, speaks TLS with the launcher or is dialled
by it (`agent_connect.py`), unpacks the project's files, ends when it receives nothing from the launcher any more, and
reports when the host is about to be taken away.

One thread, one loop. The agent never unpickles anything and never runs user code. It starts processes through a fork
server, relays their output and their records, samples their resource use, ends processes that hang or were stopped,
holds the host's blobs, and on a death reports everything known of the cause. The process that asked for a process is
its owner: when the owner is gone, its processes are ended. The first owner is the launcher; without it the agent ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakSet

import msgspec
import psutil

from ropewalk import injection
from ropewalk.engines.engine import DOOR_VARIABLE
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import LinkClosed, RopewalkError, TransportRefused
from ropewalk.processes.agent_connect import AgentConnector
from ropewalk.processes.blob_exchange import BlobExchange
from ropewalk.processes.blob_shelf import BlobShelf
from ropewalk.processes.bounds import Bounds
from ropewalk.processes.code_shelf import CodeShelf
from ropewalk.processes.environment import snapshot
from ropewalk.processes.fork_channel import ForkChannel
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.memory_limit import overuse
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
    Output,
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
    Sample,
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
from ropewalk.processes.page import CURRENT, REQUEST
from ropewalk.processes.record_forwarder import RecordForwarder
from ropewalk.processes.rights import TO_AGENT, may_say
from ropewalk.supervision.liveness import Lease, Liveness
from ropewalk.transport import kernel
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import AllowList, Credentials, create_run_folder
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.server import UnixListener
from ropewalk.transport.tokens import host_of, key_of_socket, socket_of, token_for
from ropewalk.trusted_files import make_folder

_SAMPLE_S = 1.0
_LIMIT_CHECK_S = 0.05
STOPPED_LIMIT_S = 3.0
"""A process that stays stopped (SIGSTOP) this long is killed and replaced (seconds)."""
DRAIN_S = 25.0
"""Time that processes get on a host that is about to be taken away, in seconds; Slurm and Kubernetes give 30 s."""
_STACK_DUMP_S = 0.1
"""Time that a process gets to print its stacks when its task timed out, in seconds."""
_END_S = 1.0
"""Timeout within which an agent that ends waits for its last descendants to end, in seconds."""
_READ_BYTES = 64 * 1024
_LAST_READS = 17
"""Number of reads after the end of a process: more than a pipe can hold (a mebibyte) is not read."""
_OUTPUT_CREDIT = 1 << 20
"""Bytes of output of one owner that may be in transit before its processes wait."""


class HostAgent:
    """One agent and the processes that it hosts."""

    def __init__(self, boot: AgentBoot) -> None:
        self._boot = boot
        self._host = platform.node()
        self._door = os.environ.pop(DOOR_VARIABLE) if boot.door else ""
        self._folder = boot.folder or os.path.dirname(self._door) or str(create_run_folder())
        self._loop = Loop()
        self._members = AllowList()
        self._processes: dict[str, HostedProcess] = {}
        self._by_pid: dict[int, HostedProcess] = {}
        self._early_exits: dict[int, int] = {}
        self._fork_channels: dict[tuple[tuple[str, ...], tuple[str, ...]], ForkChannel] = {}
        self._blobs = BlobShelf(self._loop.call_later)
        self._exchange = BlobExchange(
            boot, self._loop, self._blobs, lambda message: self._tell(self._launcher, message)
        )
        self._output_under_way: dict[Link, int] = {}
        self._output_problem = ""
        self._records = RecordForwarder(self._loop, self._processes)
        self._overbearing: WeakSet[Link] = WeakSet()
        """Links that have sent a message for which they have no right."""
        self._asking: dict[str, Link] = {}
        self._orphans_wait = False
        self._last_sample = time.monotonic()
        self._memory = MemoryEvidence(count_kills(), time.monotonic())
        self._code = CodeShelf(Path(self._folder), self._loop.call_soon)
        self._bounds = Bounds.here(self._host)
        self._meeting: AgentConnector | None = None
        self._lease: Lease | None = None
        self._num_bytes = 0
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
        self._actions: dict[type, Callable[[Link, Received], None]] = {
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
            OutputSeen: self._output_seen,
            RecordsSeen: lambda link, received: self._records.seen(link, received.message.size_bytes),
            FlushRecords: lambda link, received: self._records.flush(link, received.message.number),
            Ping: lambda link, received: self._tell(link, Pong()),
            PutCode: self._put_code,
            ShutdownMessage: self._shut_down,
            NeedService: self._need_service,
            ServiceAt: self._answered,
            NeedToken: self._need_token,
            TokenIs: self._answered,
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
            self._fork_channel((), ())
            self._join_launcher()
            self._loop.call_later(_SAMPLE_S, self._sample)
            self._loop.run()
        finally:  # also if the launcher is gone before we connected to it
            self._end_everything()

    def _join_launcher(self) -> None:
        self._watch_launcher()
        self._listener.open()
        if self._boot.launcher_pid:
            credentials = Credentials(self._boot.run_id, self._boot.agent_id, self._boot.secret)
            self._met(dial(parse_address(self._boot.address), credentials, CONTROL))
            return
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
        up = AgentUp(os.getpid(), self._host, str(self._listener.address), usable_cpus())
        if self._boot.launcher_pid:
            up = msgspec.structs.replace(up, environment=snapshot())
        if meeting:
            meeting.launcher = launcher
            blobs = self._exchange.open(meeting.ip)
            up = msgspec.structs.replace(up, ip=meeting.ip, dialled=meeting.dialled, blobs=blobs)
            self._lease = Lease(self._boot.lease_s, time.monotonic())
        self._tell(launcher, up)

    # Owners

    def _serve(self, _who: str, link: Link) -> None:
        self._loop.add_link(link, lambda received: self._act(link, received), lambda _why: self._owner_gone(link))

    def _act(self, link: Link, received: Received) -> None:
        if self._lease and link is self._launcher:
            self._lease.heard(time.monotonic())
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
            self._kill(process, "its owner is gone")
        self._blobs.forget(link)
        self._output_under_way.pop(link, None)
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
            self._loop.call_later(_LIMIT_CHECK_S, self._leave_when_idle)
        else:
            self._shut_down(self._launcher, None)  # type: ignore[arg-type]

    @property
    def _own_name(self) -> str:
        """Return the name of this host in addresses; empty in a run of one host."""
        return self._boot.agent_id if self._meeting else ""

    def _watch_launcher(self) -> None:
        """End with the launcher even if a forked child of it keeps our link open."""
        if not self._boot.launcher_pid:
            return
        try:
            fd = kernel.open_process(self._boot.launcher_pid)
            if fd is None:
                self._look_at_launcher(psutil.Process(self._boot.launcher_pid))
            else:
                self._loop.watch(fd, self._loop.stop)
        except (ProcessLookupError, psutil.NoSuchProcess):
            self._loop.stop()

    def _look_at_launcher(self, launcher: psutil.Process) -> None:
        """Check periodically whether the launcher is alive, where this kernel does not report its end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if launcher.is_running() and launcher.status() != psutil.STATUS_ZOMBIE:
                self._loop.call_later(_SAMPLE_S, lambda: self._look_at_launcher(launcher))
                return
        self._loop.stop()

    def _tell(self, link: Link | None, message: msgspec.Struct) -> None:
        if link:
            with contextlib.suppress(LinkClosed):  # the loop notices the end of the link by itself
                link.send(message)

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
            process = HostedProcess(start, link, self._output_folder())
        except OSError as error:
            self._tell(link, NotStarted(start.id, f"the agent cannot open what {start.name} needs: {error}"))
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

    def _need_service(self, link: Link, received: Received) -> None:
        self._asking = {ticket: asks for ticket, asks in self._asking.items() if not asks.closed}
        if self._asking.setdefault(received.message.ticket, link) is not link:
            return  # the ticket of another process
        self._tell(self._launcher, received.message)

    def _need_token(self, link: Link, received: Received) -> None:
        """Answer a process that wants to call a service of this host, or of another one, whose key the launcher has."""
        need: NeedToken = received.message
        process = self._processes.get(link.peer)
        if process is None:
            return  # it has ended
        certificate = process.start.certificate
        try:
            if host_of(need.address) == self._own_name:
                fingerprint = certificate.fingerprint if certificate else ""
                token = token_for(self._boot.service_key, need.address, link.peer, fingerprint)
                self._tell(link, TokenIs(need.ticket, token))
            elif self._asking.setdefault(need.ticket, link) is link:
                self._tell(self._launcher, msgspec.structs.replace(need, id=link.peer))
        except ValueError as error:
            self._tell(link, TokenIs(need.ticket, "", str(error)))

    def _answered(self, _link: Link, received: Received) -> None:
        """Pass on the launcher's answer to a question of a process of ours."""
        self._tell(self._asking.pop(received.message.ticket, None), received.message)

    def _put_code(self, _link: Link, received: Received) -> None:
        message: PutCode = received.message
        if message.blob:
            self._code.expect(message.id)
            self._blobs.when_here(message.blob, lambda data: self._code.put(message.id, data))
        else:
            self._code.put(message.id, bytes(received.parts[0]))

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

    def _output_folder(self) -> Path | None:
        folder = Path(self._boot.log_folder or os.path.join(self._folder, "output"))
        try:
            make_folder(folder)
        except OSError:
            return None
        return folder

    def _fork_channel(self, preload: tuple[str, ...], path: tuple[str, ...]) -> ForkChannel:
        channel = self._fork_channels.get((preload, path))
        if channel is None:
            channel = ForkChannel(preload, path, self._loop, self._forked, self._host_event)
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
        process.pid = reply.pid
        process.close_child_fds()
        self._by_pid[reply.pid] = process
        for fd in process.pipes:
            self._loop.watch(fd, lambda fd=fd: self._relay(process, fd))
        self._records.begin(process)
        if process.start.task_limit_s is not None:
            self._loop.call_later(_LIMIT_CHECK_S, lambda: self._check_limit(process))
        self._tell(process.owner, Started(reply.id, reply.pid))
        for number in process.early_signals:
            with contextlib.suppress(ProcessLookupError):
                os.kill(reply.pid, number)
        if process.ended_by:
            self._kill(process, process.ended_by)  # the request to end it came before its pid was known
        if reply.pid in self._early_exits:
            self._ended([(process, self._early_exits.pop(reply.pid))])
        if all(other.pid is not None for other in self._processes.values()):
            self._early_exits.clear()  # these were orphans; their pids may be reused
            if self._orphans_wait:
                self._orphans_wait = False
                self._end_orphans()

    # Ending

    def _signal_process(self, link: Link, received: Received) -> None:
        process = self._processes.get(received.message.id)
        if process is None:
            return
        if received.message.signal == signal.SIGKILL:
            self._kill(process, "its owner ended it")
        elif process.pid is None:
            process.early_signals.append(received.message.signal)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, received.message.signal)

    def _set_request(self, _link: Link, received: Received) -> None:
        process = self._processes.get(received.message.id)
        if process:
            process.page.words[REQUEST] = received.message.word

    def _kill(self, process: HostedProcess, why: str) -> None:
        process.ended_by = process.ended_by or why
        if process.pid in self._by_pid:  # else it is dead, and its pid may belong to another process
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        ended: list[tuple[HostedProcess, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            process = self._by_pid.get(pid)
            if process:
                ended.append((process, code))
                continue
            was_fork_server = any(channel.ended(pid, code) for channel in self._fork_channels.values())
            # An orphan of a process of ours, or a process whose fork reply is still in transit.
            if not was_fork_server and any(other.pid is None for other in self._processes.values()):
                self._early_exits[pid] = code
        self._ended(ended)

    def _ended(self, ended: Sequence[tuple[HostedProcess, int]]) -> None:
        """Handle the end of processes, with their exit codes: end their descendants, and tell their owners."""
        if ended:
            # First, because descendants may go on printing without end. All together: it goes through the processes of
            # the host.
            self._end_groups([process for process, _ in ended])
        killed = [process for process, code in ended if code == -signal.SIGKILL and not process.ended_by]
        out_of_memory = self._memory.explain(len(killed), count_kills(), time.monotonic()) if killed else ""
        for process, code in ended:
            self._report_end(process, code, out_of_memory if process in killed else "")

    def _report_end(self, process: HostedProcess, exit_code: int, out_of_memory: str) -> None:
        assert process.pid is not None
        for fd in process.pipes:
            self._loop.unwatch(fd)
            self._relay(process, fd, reads=_LAST_READS)
        self._records.finish(process)
        for owned in [each for each in self._processes.values() if each.owner.peer == process.start.id]:
            self._kill(owned, "its owner is gone")  # even if a child of the owner keeps the link open
        for is_error, text in process.finish_output():
            self._send_output(process, is_error, text)
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
        if process.pid:
            self._by_pid.pop(process.pid, None)
        self._members.retire(process.start.id)
        if process.owner is not self._launcher:
            self._tell(self._launcher, Retired([RetiredProcess(process.start.id)]))
        process.close()

    def _end_groups(self, dead: Iterable[HostedProcess]) -> None:
        """End what dead processes left behind: their groups, and orphans that became our children."""
        for process in dead:
            assert process.pid is not None
            self._by_pid.pop(process.pid, None)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self._orphans_wait = any(process.pid is None for process in self._processes.values())
        self._end_orphans()

    def _end_orphans(self) -> None:
        if injection.visit:
            injection.visit("agent.before_looking", "")
        names = {process.start.name for process in self._by_pid.values()}
        for orphan in psutil.Process().children():
            if not self._is_expected(orphan.pid, names):
                _kill_tree(orphan)

    def _is_expected(self, pid: int, names: set[str]) -> bool:
        """Return whether a child of ours is a process that we started, or an orphan of one that is still running."""
        if pid in self._by_pid or any(pid == channel.pid for channel in self._fork_channels.values()):
            return True
        try:
            leader = os.getsid(pid)
        except ProcessLookupError:
            return True  # it has ended, and is reaped in a moment
        if leader in self._by_pid or _process_name(pid) in names:
            return True
        # Perhaps a worker whose fork reply is still in transit; if it is not, the reply calls us again.
        return leader in (pid, os.getsid(0)) and any(process.pid is None for process in self._processes.values())

    def _end_everything(self) -> None:
        for process in list(self._processes.values()):
            if process.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        self._code.close()
        deadline = time.monotonic() + _END_S
        while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for child in children:  # repeatedly: children that they leave behind become ours
                with contextlib.suppress(psutil.Error):
                    child.kill()
            self._wait_for_some()
        self._exchange.close()
        if self._meeting:
            self._meeting.close()
        if not self._boot.folder or (not self._told_to_end and _ends_soon(self._boot.launcher_pid)):
            shutil.rmtree(self._folder, ignore_errors=True)  # ours, or no other process is left to do it

    def _wait_for_some(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)

    # Watching

    def _check_limit(self, process: HostedProcess) -> None:
        if process.start.id not in self._processes or process.ended_by:
            return
        limit_s = process.start.task_limit_s
        assert limit_s is not None
        task = process.page.words[CURRENT]
        if process.running_s() > limit_s and process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR2)  # its stacks become its last output
            self._loop.call_later(_STACK_DUMP_S, lambda: self._end_overrun(process, task))
            return
        self._loop.call_later(_LIMIT_CHECK_S, lambda: self._check_limit(process))

    def _end_overrun(self, process: HostedProcess, task: int) -> None:
        if process.start.id not in self._processes or process.ended_by:
            return
        if process.page.words[CURRENT] != task:  # the task ended meanwhile, and the next one must not be blamed
            self._check_limit(process)
            return
        process.overran = task
        self._kill(process, f"its task ran longer than task_timeout_s={process.start.task_limit_s:g}")

    def _sample(self) -> None:
        now = time.monotonic()
        was_away = now - self._last_sample > 2 * _SAMPLE_S + 0.5  # the agent was stopped: what it saw is stale
        self._last_sample = now
        samples: dict[Link, list[Sample]] = {self._launcher: []} if self._launcher else {}
        for process in list(self._processes.values()):
            sample = process.sample()
            if sample is None:
                continue
            samples.setdefault(process.owner, []).append(sample)
            if sample.state != psutil.STATUS_STOPPED:
                process.stopped_since = None
            elif process.stopped_since is None or was_away:
                process.stopped_since = now
            elif now - process.stopped_since >= STOPPED_LIMIT_S:
                self._kill(process, f"it had been stopped (SIGSTOP) for {now - process.stopped_since:.0f} s")
        for link, those in samples.items():
            self._tell(link, Samples(those))
        self._end_overuse()
        self._memory.look(count_kills(), now)
        if self._lease and self._launcher and self._launcher.received_bytes != self._num_bytes:
            self._num_bytes = self._launcher.received_bytes  # also of a large message that is not complete yet
            self._lease.heard(now)
        if self._lease and self._lease.state(now) is Liveness.LOST:
            print(f"the launcher was silent for {self._lease.silent_s(now):.0f} s; this agent ends", flush=True)
            self._loop.stop()
        self._loop.call_later(_SAMPLE_S, self._sample)

    def _end_overuse(self) -> None:
        limits = {
            pid: process.start.memory_limit_bytes
            for pid, process in self._by_pid.items()
            if process.start.memory_limit_bytes
        }
        for pid, words in overuse(limits).items():
            self._kill(self._by_pid[pid], words)

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

    # Output

    def _relay(self, process: HostedProcess, fd: int, *, reads: int = 1) -> None:
        for _ in range(reads):
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(fd)
                return
            is_error, text = process.feed(fd, data)
            self._notice_output_problem(process)
            if text:
                self._send_output(process, is_error, text)
        if self._output_under_way.get(process.owner, 0) > _OUTPUT_CREDIT:
            self._loop.unwatch(fd)
            process.paused.add(fd)

    def _notice_output_problem(self, process: HostedProcess) -> None:
        problem = process.output_problem()
        if problem and not self._output_problem:  # a full disk affects all of them: one event
            self._output_problem = problem
            self._host_event(f"the output of {process.start.name} {problem}")

    def _send_output(self, process: HostedProcess, is_error: bool, text: str) -> None:
        size = len(text)
        self._output_under_way[process.owner] = self._output_under_way.get(process.owner, 0) + size
        self._tell(process.owner, Output(process.start.id, is_error, text, size))

    def _output_seen(self, link: Link, received: Received) -> None:
        self._output_under_way[link] = self._output_under_way.get(link, 0) - received.message.size_bytes
        if self._output_under_way[link] > _OUTPUT_CREDIT // 2:
            return
        for process in self._processes.values():
            if process.owner is link and process.paused:
                for fd in process.paused:
                    self._loop.watch(fd, lambda process=process, fd=fd: self._relay(process, fd))
                process.paused.clear()


def _process_name(pid: int) -> str:
    """Return the name of the process of ours that started a program, where the kernel tells."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"ROPEWALK_PROCESS="):
                return variable.partition(b"=")[2].decode(errors="replace")
    return ""


def _kill_tree(root: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _ends_soon(pid: int) -> bool:
    """Return whether a process is gone, or will be within two seconds (its descriptors close before it is gone)."""
    deadline = time.monotonic() + 2
    while pid and time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.Error:
            return True
        time.sleep(0.02)
    return False


def main() -> None:
    """Run an agent: its boot configuration comes on standard input, so that no secret is in argv."""
    boot = msgspec.json.decode(sys.stdin.buffer.read(), type=AgentBoot)
    injection.load("agent")
    try:
        if problem := kernel.what_keeps_processes_from_running():
            raise TransportRefused(problem)
        HostAgent(boot).run()
    except TransportRefused as error:
        print(f"this agent on {platform.node()} cannot run: {error}", file=sys.stderr)
        sys.exit(REFUSED_EXIT_CODE)
    except (RopewalkError, OSError) as error:  # its launcher shows it to the user as the last output of the agent
        sys.exit(f"this agent on {platform.node()} cannot run: {error}")


if __name__ == "__main__":
    main()
