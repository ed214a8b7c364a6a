"""Thousands of workers in one process: a host of a run whose workers are objects instead of processes.

    launcher: the real pool, session, dispatcher, links ◀─ 1 link each ─▶ objects, each a real `PoolWorker`
                         └───────── control link ──────────▶ this module, in the agent's place

What runs in the launcher is what runs for as many workers on as many hosts: the engine "crowd" submits this module
instead of an agent, and nothing of the launcher knows the difference. The objects are the pool's own workers: messages,
batches and pages are theirs. Only time is not: `population_work.sleep` moves the clock of its worker on, and what the
worker says by that clock goes out when everybody's clock is there. So a task has its result early and tells it in time.

What the crowd cannot show is what a process costs: starting, memory, switches of the kernel. Nor recalls: what a worker
has is under way, and nothing of it can be taken back.

    with crowd(2048) as session, rw.Pool(2048, session=session) as pool: ...
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

import ropewalk as rw
from ropewalk.engines import ENGINES
from ropewalk.engines.engine import JobSpec, Reach
from ropewalk.engines.local import LocalEngine
from ropewalk.errors import LinkClosed, TransportRefused
from ropewalk.pool import worker as pool_worker
from ropewalk.pool.messages import POOL, BeginWorker, Setup, StopWorker, Tasks
from ropewalk.pool.messages import ConstantMessage as ConstantHere
from ropewalk.pool.worker import PoolWorker
from ropewalk.processes import bootstrap, host_memory
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.messages import (
    CONTROL,
    AgentBoot,
    AgentUp,
    DropBlob,
    Exited,
    Peek,
    Ping,
    Pong,
    PutBlob,
    Recall,
    ShutdownMessage,
    SignalProcess,
    Started,
    StartProcess,
    TaskReport,
)
from ropewalk.processes.owner import EMPTY_PAGE
from ropewalk.processes.page import CURRENT, FENCE_FROM, IDLE, OPEN, TaskPage
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import BlobRef, open_parts
from ropewalk.transport.client import dial, dial_owner
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.main_namespace import MainFacts, MainNamespace


@contextlib.contextmanager
def crowd(num_workers: int, num_hosts: int | None = None) -> Generator[rw.Session]:
    """A session whose pools of up to `num_workers` run in one process, or in `num_hosts` processes, each a host."""
    use_descriptors(num_workers + 256)
    ENGINES["crowd"] = f"{__name__}:{CrowdEngine.__name__}"  # as an installed package would add it
    try:
        with rw.Session(engine="crowd", hosts=num_hosts) as session:
            yield session
    finally:
        del ENGINES["crowd"]


def use_descriptors(num: int) -> None:
    """Let this process have `num` files and sockets open, as far as it may.

    Raises:
        OSError: it may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < num:
        if hard < num:
            raise OSError(f"{num} descriptors are needed and this machine allows {hard}; raise its limit (ulimit -n)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class CrowdEngine(LocalEngine):
    """Starts this module where the local engine starts an agent."""

    name = "crowd"
    reach = Reach.HERE

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        return super().submit(replace(spec, command=[self.python, __file__]), count, run_id, request_id)


class Host:
    """In the agent's place: brings workers up, hands them blobs, answers what an agent is asked."""

    def __init__(self, boot: AgentBoot) -> None:
        self._boot = boot
        self._loop = Loop()
        self._launcher = dial(parse_address(boot.address), self._as(boot.agent_id, boot.secret), CONTROL)
        self._workers: dict[str, TimedWorker] = {}
        self._blobs: dict[str, tuple[BlobRef, int]] = {}
        self._starting: deque[StartProcess] = deque()

    def run(self) -> None:
        """Serve until the launcher is gone."""
        self._loop.add_link(self._launcher, self._heard, lambda _why: self._loop.stop())
        self._launcher.send(AgentUp(os.getpid(), platform.node()))
        self._loop.run()

    def blob(self, id: str) -> tuple[BlobRef, int] | None:
        """A blob with its memory file; None if it has not come yet."""
        return self._blobs.get(id)

    def ended(self, id: str) -> None:
        """A worker has ended."""
        self._workers.pop(id, None)
        self._tell(Exited(id, os.getpid(), 0, "", "", False, 0.0, "", EMPTY_PAGE))

    def _as(self, id: str, secret: str) -> Credentials:
        return Credentials(self._boot.run_id, id, secret)

    def _tell(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(LinkClosed):
            self._launcher.send(message)

    def _heard(self, received: Received) -> None:
        match received.message:
            case Ping():
                self._tell(Pong())
            case StartProcess() as start:
                self._starting.append(start)
                if len(self._starting) == 1:
                    self._loop.call_soon(self._start_one)
            case PutBlob(ref):
                self._blobs[ref.id] = ref, received.fds[0]
                for worker in self._workers.values():
                    worker.go_on()
            case DropBlob(id):
                os.close(self._blobs.pop(id)[1])
            case Peek(id) if id in self._workers:
                self._tell(TaskReport(id, self._workers[id].page.report(), 0, 0))
            case Recall(id, until, _) if id in self._workers:  # what it has is under way: there is nothing to take back
                self._tell(TaskReport(id, self._workers[id].page.report(), until, until))
            case SignalProcess(id, number) if number in (signal.SIGTERM, signal.SIGKILL) and id in self._workers:
                self._workers[id].end()
            case ShutdownMessage():
                self._loop.stop()
            case _:
                pass

    def _start_one(self) -> None:
        """One at a time, with a look at the other links in between."""
        start = self._starting.popleft()
        if self._starting:
            self._loop.call_soon(self._start_one)
        context = ProcessContext(
            credentials=self._as(start.id, start.secret),
            name=start.name,
            host=platform.node(),
            cpus=start.cpus,
            owner_address=start.address,
            agent_address=self._boot.address,
            folder=self._boot.folder,
            page=_page(),
        )
        self._tell(Started(start.id, os.getpid()))
        try:
            link = dial_owner(parse_address(start.address), context.credentials, POOL)
        except (LinkClosed, TransportRefused):  # it was given up meanwhile
            self.ended(start.id)
            return
        worker = self._workers[start.id] = TimedWorker(context, link, self, self._loop)
        self._loop.add_link(link, worker.hear, lambda _why: self.ended(start.id))


class TimedWorker(PoolWorker):
    """The pool's own worker, between events: what it sends while a task "sleeps" goes out when that time has come."""

    def __init__(self, context: ProcessContext, link: Link, host: Host, loop: Loop) -> None:
        super().__init__(context, cast("Any", _LaterLink(link, loop)))
        self.page = context.page
        self._real_link = link
        self._host = host
        self._loop = loop
        self._waiting: deque[Received] = deque()
        self._is_busy = False

    def hear(self, received: Received) -> None:
        """A message from the pool."""
        self._waiting.append(received)
        self.go_on()

    def go_on(self) -> None:
        """Do what waits, up to tasks that take their time."""
        while self._waiting and not self._is_busy:
            received = self._waiting[0]
            message = received.message
            if isinstance(message, ConstantHere) and message.blob and self._host.blob(message.id) is None:
                return  # until it is here
            self._waiting.popleft()
            self._do(received)

    def end(self) -> None:
        """As a signal would."""
        self._loop.remove_link(self._real_link)
        self._host.ended(self._context.credentials.process_id)

    def _do(self, received: Received) -> None:
        match received.message:
            case BeginWorker() as begin:
                self._namespace = MainNamespace(msgspec.msgpack.decode(begin.main, type=MainFacts))
            case Tasks(units):
                _CLOCK.now_ns = time.monotonic_ns()
                bootstrap.current = self._context  # where a task's seed comes from
                self._run_units(units, received)
                self._is_busy = True
                self._loop.call_later(_CLOCK.ahead_s, self._rest)
            case ConstantHere() as constant:
                if constant.writable or constant.id not in _ARRIVED:
                    self._receive_constant(received)
                    _ARRIVED.add(constant.id)
                else:
                    self._ids[constant.number] = constant.id
                    for fd in received.fds:
                        os.close(fd)
            case Setup():
                self._set_up(received)
            case StopWorker():
                self._flush()
                self.end()
            case _:
                pass  # Forget: others may still need it

    def _rest(self) -> None:
        """The tasks of a message have ended."""
        self._is_busy = False
        _CLOCK.now_ns = time.monotonic_ns()
        if not self._waiting:
            self._flush()
        self.go_on()

    def _fetch(self, id: str, writable: bool) -> Sequence[Part]:
        found = self._host.blob(id)
        assert found
        return open_parts(os.dup(found[1]), found[0].lengths, writable=writable)


class _Clock:
    """The time of the worker that runs just now, in the place of the module `time`: sleeping moves it on."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, duration_s: float) -> None:
        self.now_ns += round(duration_s * 1e9)

    @property
    def ahead_s(self) -> float:
        """How far it is ahead of everybody's time."""
        return max(0.0, (self.now_ns - time.monotonic_ns()) / 1e9)


class _LaterLink:
    """A link on which words go out at the time of their worker."""

    def __init__(self, link: Link, loop: Loop) -> None:
        self.real = link
        self.stream = link.stream
        self._loop = loop

    def send(self, message: msgspec.Struct, parts: Sequence[Part] = (), fds: Sequence[int] = ()) -> None:
        ahead_s = _CLOCK.ahead_s
        if fds or ahead_s <= 0:
            self._send(message, parts, fds)
        else:
            self._loop.call_later(ahead_s, lambda: self._send(message, parts, fds))

    def _send(self, message: msgspec.Struct, parts: Sequence[Part], fds: Sequence[int]) -> None:
        with contextlib.suppress(LinkClosed):
            self.real.send(message, parts, fds)


_CLOCK = _Clock()
_ARRIVED: set[str] = set()


def _page() -> TaskPage:
    """An idle page in memory of this process: no descriptor, of which there are few."""
    page = TaskPage(-1)
    page.words[CURRENT] = IDLE
    page.words[FENCE_FROM] = OPEN
    return page


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    cast("Any", importlib.import_module("population_work")).sleep = _CLOCK.sleep
    cast("Any", pool_worker).time = _CLOCK
    # This process is the host: what its processes share lies here, and not with an agent.
    cast("Any", host_memory)._of_host = lambda _here, _name, *rest: host_memory._of_process(*rest)
    boot = msgspec.json.decode(sys.stdin.buffer.read(), type=AgentBoot)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Host(boot).run()
    os._exit(0)


if __name__ == "__main__":
    main()
