"""The launcher's control socket, by which another terminal of the same user inspects and stops a running program.

    ropewalk ps / logs / stop / stack                    launcher
      1. reads <run folder>/control-*.json ◀──writes──── ControlServer
      2. dials the socket named in it ─────handshake───▶ its loop; uid and secret are checked
      3. Status Stop LogFiles Stacks ──────────────────▶ a thread of its own for each ──▶ ControlTarget
         StatusIs LogFilesAre StacksAre ControlProblem ◀── its answer

The target may block: the loop, and other requests, go on. The other end is `control/launchers.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from ropewalk.atomic_files import write_new_file
from ropewalk.errors import LinkClosed
from ropewalk.program.status import ProgramStatus
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.server import UnixListener

logger = logging.getLogger(__name__)

ASKER = "control"
"""Peer name of every client; one name is enough, as all clients belong to one user."""
MAX_UNANSWERED = 16
"""Requests are refused when this number is unanswered, so that a hung target does not collect threads. `Stop` is always
accepted."""
_CLOSE_S = 2.0
"""Seconds for which `close` waits until the last answers are sent."""
_LOOK_S = 0.05

_numbers = itertools.count(1)  # programs of one process may share a run folder


class ControlTarget(Protocol):
    """A running program, as seen by `ControlServer`, which calls it from several threads at once."""

    @property
    def name(self) -> str:
        """The program's name."""
        ...

    def status(self) -> ProgramStatus:
        """The program's state."""
        ...

    def stop(self, grace_s: float | None) -> None:
        """Stop the program, and return when it has ended; may be called twice.

        Args:
            grace_s: seconds between the request to end and the kill; None for the program's own default.
        """
        ...

    def log_files(self) -> Mapping[str, Path]:
        """The output file of each replica, by replica name such as "actor.3"; empty if output is not kept."""
        ...

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """The Python stacks of each replica of a node, or of all nodes, by replica name.

        A replica that does not answer in time has a sentence that says so in place of its stack.
        """
        ...


# --- messages ---------------------------------------------------------------------------------------------------------


class Status(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Asks for the program's state; answered by `StatusIs`."""


class Stop(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Asks the program to stop; answered by `StatusIs` when it has ended."""

    grace_s: float | None


class LogFiles(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Asks for the output files of its nodes; answered by `LogFilesAre`."""


class Stacks(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Asks for the stacks of its nodes; answered by `StacksAre`."""

    node: str | None
    timeout_s: float


class StatusIs(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """The program's state, or its final state."""

    status: ProgramStatus


class LogFilesAre(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """Paths by replica name."""

    paths: dict[str, str]


class StacksAre(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """Stacks by replica name."""

    stacks: dict[str, str]


class ControlProblem(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """The reason why a request was not answered."""

    text: str


Request = Status | Stop | LogFiles | Stacks
Answer = StatusIs | LogFilesAre | StacksAre | ControlProblem
CONTROL_CODEC = Codec(Request | Answer)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The content of `control-*.json`: how to reach a program of this user."""

    program: str
    pid: int
    address: str
    run_id: str
    secret: str = field(repr=False)


# --- the server -------------------------------------------------------------------------------------------------------


class ControlServer:
    """Answers requests about one running program on a Unix socket in its run folder.

    Args:
        loop: a running loop; it should still run when the server is closed, so that clients learn of the end.
        folder: the run folder, as made by `create_run_folder`; several programs may share it.
        run_id: the run's identifier.
        target: the program.
    """

    def __init__(self, loop: Loop, folder: Path, run_id: str, target: ControlTarget) -> None:
        self._pid = os.getpid()
        self._loop = loop
        self._run_id = run_id
        self._target = target
        label = f"{self._pid}-{next(_numbers)}"
        self._socket_path = folder / f"c{label}.sock"  # kept short: see MAX_SOCKET_NAME_BYTES
        self.file = folder / f"control-{label}.json"
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._unanswered: dict[int, tuple[float, Request]] = {}
        self._stoppers: list[Link] = []  # clients that wait to learn how the program ended
        self._questions = itertools.count()
        self._listener: UnixListener | None = None
        self._closed = threading.Event()
        self._closed.set()

    def open(self) -> None:
        """Make the program reachable; from any thread.

        Raises:
            OSError: the socket or the file could not be made.
        """
        credentials = Credentials.create(self._run_id, ASKER)
        members = AllowList()
        members.admit(ASKER, credentials.secret)
        listener = UnixListener(self._loop, str(self._socket_path), self._run_id, members, CONTROL_CODEC, self._linked)
        self._listener = listener
        self._closed.clear()
        self._loop.call_soon(listener.open)
        announcement = Announcement(
            self._target.name, self._pid, str(listener.address), self._run_id, credentials.secret
        )
        try:
            write_new_file(self.file, [msgspec.json.encode(announcement)], durable=False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Tell the clients that asked for a stop how the program ended, and withdraw the announcement.

        May be called twice, and from any thread but the loop's.
        """
        if self._pid != os.getpid():
            self.forget()
            return
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is None:
            self._closed.wait(_CLOSE_S)  # another thread may be closing, and the caller is about to stop the loop
            return
        with contextlib.suppress(OSError):
            os.unlink(self.file)
        deadline = time.monotonic() + _CLOSE_S
        with self._lock:
            stoppers, self._stoppers = self._stoppers, []
        if stoppers:
            last = self._work_out(Status())
            for link in stoppers:
                _say(link, last)
        self._on_loop(listener.close, deadline)
        while any(link.unsent_bytes for link in self._open_links()) and time.monotonic() < deadline:
            time.sleep(0.005)
        self._on_loop(lambda: [self._loop.remove_link(link) for link in self._open_links()], deadline)
        self._closed.set()

    def forget(self) -> None:
        """In a forked child: close the copies of descriptors; the program stays with the parent."""
        if self._listener:
            self._listener.forget()
            self._listener = None

    def _on_loop(self, call: Callable[[], object], deadline: float) -> None:
        done = threading.Event()
        self._loop.call_soon(call)
        self._loop.call_soon(done.set)
        while not done.wait(_LOOK_S) and time.monotonic() < deadline:
            if self._loop.ended.is_set():  # the session was closed while the program ran; then nobody else calls it
                if not done.is_set():
                    call()
                return

    def _open_links(self) -> list[Link]:
        with self._lock:
            return [link for link in self._links if not link.closed]

    # On the loop

    def _linked(self, _: str, link: Link) -> None:
        with self._lock:
            self._links.add(link)
        self._loop.add_link(link, lambda received: self._asked(link, received), lambda _why: self._lost(link))

    def _lost(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)
            self._stoppers = [stopper for stopper in self._stoppers if stopper is not link]

    def _asked(self, link: Link, received: Received) -> None:
        request = received.message
        question = next(self._questions)
        with self._lock:
            if len(self._unanswered) >= MAX_UNANSWERED and not isinstance(request, Stop):
                _say(link, ControlProblem(self._describe_unanswered()))
                return
            self._unanswered[question] = (time.monotonic(), request)
            if isinstance(request, Stop):
                self._stoppers.append(link)
        threading.Thread(
            target=self._answer, args=(link, question, request), name="ropewalk-control", daemon=True
        ).start()

    def _describe_unanswered(self) -> str:
        asked_at, request = min(self._unanswered.values(), key=lambda asked: asked[0])
        return (
            f"{len(self._unanswered)} questions to the program are not answered yet, the oldest ("
            f"{type(request).__name__.lower()}) for {time.monotonic() - asked_at:.0f} s; it seems to hang"
        )

    # In a thread for each request

    def _answer(self, link: Link, question: int, request: Request) -> None:
        answer = self._work_out(request)
        with self._lock:
            del self._unanswered[question]
            if isinstance(request, Stop):
                if link not in self._stoppers:
                    return  # `close` has told the client, or the client has left
                self._stoppers.remove(link)
        _say(link, answer)

    def _work_out(self, request: Request) -> Answer:
        try:
            match request:
                case Status():
                    return StatusIs(self._target.status())
                case Stop(grace_s):
                    self._target.stop(grace_s)
                    return StatusIs(self._target.status())
                case LogFiles():
                    return LogFilesAre({name: str(path) for name, path in self._target.log_files().items()})
                case Stacks(node, timeout_s):
                    return StacksAre(dict(self._target.stacks(node, timeout_s)))
        except Exception as error:  # any exception of the target is sent to the client; the log has its traceback
            logger.info("a question to program %s failed", self._target.name, exc_info=True)
            return ControlProblem(f"{type(error).__name__}: {error}")


def _say(link: Link, answer: Answer) -> None:
    with contextlib.suppress(LinkClosed):  # the client has left
        link.send(answer)
