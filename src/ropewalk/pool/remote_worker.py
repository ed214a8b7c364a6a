"""One worker of a pool on the launcher's side: its state, the constants that it has, and the messages to it.

    starting ── set_up ─▶ (initializer) ── WorkerReady ─▶ idle ◀── run ──▶ running
        └────────────────────────┴──────────────────────────┴─── stop ──▶ stopping ─▶ exited

A message to a worker whose link has closed is dropped: the exit of the worker will be reported, and that report gives
back the tasks that it held.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Sequence

import msgspec

from ropewalk.errors import LinkClosed
from ropewalk.pool.constants import Constant
from ropewalk.pool.messages import BeginWorker, ConstantMessage, Forget, Setup, StopWorker, Tasks, UnitHeader
from ropewalk.pool.task_content import Content
from ropewalk.pool.task_table import SpanAssignment
from ropewalk.processes.blob_directory import BlobDirectory
from ropewalk.transport.blobs import parts_of_file
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link
from ropewalk.transport.main_namespace import main_facts

_MOST_HELD = 16
"""The largest number of messages that are held back, at an idle worker, to be sent together."""
_MAX_FDS = 32
"""File descriptors in one message; the kernel takes at most 253."""


class RemoteWorker(msgspec.Struct, eq=False):
    """A worker as the launcher knows it. The caller holds the pool's lock."""

    id: str
    rank: int
    name: str
    output: str
    """The name under which its output is kept."""
    identity: tuple[int, ...]
    """Its identity in multiprocessing."""
    blobs: BlobDirectory
    """Brings large constants to its host."""
    link: Link | None = None
    ready: bool = False
    stopping: bool = False
    known: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Ids of the constants that it has, with their numbers on its link."""
    next_number: int = 0
    num_done: int = 0
    connected: float = 0.0
    """Monotonic time at which its link was up; 0 before."""
    host: str = ""
    """The name of its host; empty before its link is up."""
    host_leaves: bool = False
    """Whether its host is being taken away: its end is then neither its own fault nor that of its task."""

    @property
    def state(self) -> str:
        """Its state without regard to tasks: "starting", "idle" or "stopping"."""
        return "stopping" if self.stopping else "idle" if self.ready else "starting"

    @property
    def where(self) -> str:
        """Name and host of the worker, for notes on errors."""
        return f"{self.name} on {self.host}"

    def set_up(self, begin: BeginWorker, initializer: Constant | None, arguments: Constant | None) -> None:
        """Send what the worker needs before its first task.

        Args:
            begin: the first message, but for the worker's identity.
            initializer: the function to call first, if there is one.
            arguments: the tuple of its arguments; the worker gets memory of its own for them.
        """
        self.send(msgspec.structs.replace(begin, identity=self.identity))
        given = [constant for constant in (initializer, arguments) if constant]
        for constant in given:
            self._provide(constant, writable=constant is arguments)
        self.send(Setup(initializer.id if initializer else "", arguments.id if arguments else ""))
        for constant in given:  # the worker forgets both when the initializer has returned; a task may need them again
            self.known.pop(constant.id, None)

    def run(self, assignments: Sequence[SpanAssignment]) -> None:
        """Send tasks, and before them the constants that they need and that the worker does not have."""
        headers: list[UnitHeader] = []
        parts: list[Part] = []
        fds: list[int] = []
        carries_fds = self.link is not None and self.link.stream.carries_fds
        for assignment in assignments:
            content: Content = assignment.span.unit.content
            for constant in content.needs:
                if constant.id not in self.known:
                    self._provide(constant)
            if content.shared and carries_fds:
                fds.append(content.fd)
                headers.append(_header(assignment, content, self.known, content.shared, 0))
            else:  # to another host go the bytes themselves
                own = parts_of_file(content.fd, content.shared) if content.shared else content.parts
                headers.append(_header(assignment, content, self.known, (), len(own)))
                parts += own
            if len(fds) == _MAX_FDS:
                self.send(Tasks(headers), parts, fds)
                headers, parts, fds = [], [], []
        if headers:
            self.send(Tasks(headers), parts, fds)

    def forget(self, constants: Sequence[Constant]) -> None:
        """Let the worker forget constants, of those that it has."""
        mine = [self.known.pop(constant.id) for constant in constants if constant.id in self.known]
        if mine and self.link and len(self.link.held) < _MOST_HELD:
            self._hold(Forget(mine))  # not urgent: sent with its next tasks
        elif mine:
            self.send(Forget(mine))

    def stop(self) -> None:
        """Let the worker end when it has run the tasks that it holds."""
        self.send(StopWorker())

    def send(self, message: msgspec.Struct, parts: Sequence[Part] = (), fds: Sequence[int] = ()) -> None:
        """Send a message, if the worker has a link."""
        if self.link:
            self.link.send_if_open(message, parts, fds)

    def _hold(self, message: msgspec.Struct, parts: Sequence[Part] = (), fds: Sequence[int] = ()) -> None:
        """Send a message together with the next one: one system call, and the worker wakes up once."""
        if self.link:
            with contextlib.suppress(LinkClosed):
                self.link.hold(message, parts, fds)

    def _provide(self, constant: Constant, *, writable: bool = False) -> None:
        self.known[constant.id] = number = self.next_number
        self.next_number += 1
        fds: Sequence[int] = ()
        if constant.blob:
            if self.link and self.link.stream.carries_fds:
                fds = [constant.fd]  # the memory file is on this host, so the worker need not ask its agent for it
            else:
                self.blobs.provide(self.id, constant.blob, constant.fd)
        self._hold(ConstantMessage(number, constant.id, constant.blob, writable), constant.parts, fds)


def first_message() -> BeginWorker:
    """Return the first message to the workers of this process, but for their identity."""
    here = multiprocessing.current_process()
    return BeginWorker(msgspec.msgpack.encode(main_facts()), bytes(here.authkey), (), here.name, os.getpid())


def _header(
    assignment: SpanAssignment, content: Content, numbers: dict[str, int], shared: tuple[int, ...], num_parts: int
) -> UnitHeader:
    _, seq, (unit, start, stop) = assignment
    return UnitHeader(
        seq,
        numbers[unit.code],
        content.kind,
        start,
        stop,
        unit.first_index,
        content.seed,
        content.span,
        num_parts,
        shared,
        unit.patient,
    )
