"""The launcher's ear: through it, another terminal of the same user asks about a running program and stops it.

    ropewalk ps / logs / stop / stack                    launcher
      1. reads <run folder>/control-*.json ◀──writes──── ControlServer
      2. dials the socket named in it ─────handshake───▶ its loop; uid and secret are checked
      3. Status Stop LogFiles Stacks ──────────────────▶ a thread of its own for each ──▶ ControlTarget
         StatusIs LogFilesAre StacksAre ControlProblem ◀─────── its answer

The target may block as long as it likes: the loop, and other questions, go on.
The other end is `program/launchers.py`.
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

#: Who asks; one name is enough, as all who may ask are one user.
ASKER = "control"
#: More unanswered questions than this are not taken, so that a target that hangs does not gather threads. Stop is.
MAX_UNANSWERED = 16
#: How long `close` waits for last answers to leave.
_CLOSE_S = 2.0
_LOOK_S = 0.05

_numbers = itertools.count(1)  # programs of one process may share a run folder


class ControlTarget(Protocol):
    """What a running program lets others ask. Called from threads of the control server, several at once."""

    @property
    def name(self) -> str:
        """Of the program."""
        ...

    def status(self) -> ProgramStatus:
        """What it is doing."""
        ...

    def stop(self, grace_s: float | None) -> None:
        """Stop it, and return when it has ended. None takes the program's own grace; may be called twice."""
        ...

    def log_files(self) -> Mapping[str, Path]:
        """Where the output of each replica is kept, by its name, such as "actor.3"; empty if it is not kept."""
        ...

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """The Python stack of each replica of a node, or of all nodes, by its name.

        Whoever does not answer in time has a sentence that says so in place of a stack.
        """
        ...


# --- messages ---------------------------------------------------------------------------------------------------------


class Status(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """What is the program doing? Answered by `StatusIs`."""


class Stop(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Stop it; answered by `StatusIs` when it has ended."""

    grace_s: float | None


class LogFiles(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Where is the output of its nodes? Answered by `LogFilesAre`."""


class Stacks(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Where do its nodes stand? Answered by `StacksAre`."""

    node: str | None
    timeout_s: float


class StatusIs(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """What the program is doing, or in what it has ended."""

    status: ProgramStatus


class LogFilesAre(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """Paths by name of the replica."""

    paths: dict[str, str]


class StacksAre(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """Stacks by name of the replica."""

    stacks: dict[str, str]


class ControlProblem(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """Why there is no answer."""

    text: str


Request = Status | Stop | LogFiles | Stacks
Answer = StatusIs | LogFilesAre | StacksAre | ControlProblem
CONTROL_CODEC = Codec(Request | Answer)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The content of `control-*.json`: how a program of this user is reached."""

    program: str
    pid: int
    address: str
    run_id: str
    secret: str = field(repr=False)


# --- the server -------------------------------------------------------------------------------------------------------


class ControlServer:
    """Answers questions about one running program on a unix socket in its run folder.

    Args:
        loop: a running loop; it should still run when this is closed, so that whoever asked hears of the end.
        folder: of the run, as `create_run_folder` makes it; several programs may share it.
        run_id: of the run.
        target: what is asked about.
    """

    def __init__(self, loop: Loop, folder: Path, run_id: str, target: ControlTarget) -> None:
        self._pid = os.getpid()
        self._loop = loop
        self._run_id = run_id
        self._target = target
        label = f"{self._pid}-{next(_numbers)}"
        self._socket_path = folder / f"c{label}.sock"  # as short as it must be: see MAX_SOCKET_NAME_BYTES
        self.file = folder / f"control-{label}.json"
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._unanswered: dict[int, tuple[float, Request]] = {}
        self._stoppers: list[Link] = []  # wait to hear how it ended
        self._questions = itertools.count()
        self._listener: UnixListener | None = None
        self._closed = threading.Event()
        self._closed.set()

    def open(self) -> None:
        """Let others find the program; from any thread.

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
        """Tell those who asked to stop it how it ended, and be found no more.

        May be called twice, and from any thread but the loop's.
        """
        if self._pid != os.getpid():
            self.forget()
            return
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is None:
            self._closed.wait(_CLOSE_S)  # another thread may be at it, and our caller is about to stop the loop
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
        """In a forked child: close our copies of descriptors; the program stays with the parent."""
        if self._listener:
            self._listener.forget()
            self._listener = None

    def _on_loop(self, call: Callable[[], object], deadline: float) -> None:
        done = threading.Event()
        self._loop.call_soon(call)
        self._loop.call_soon(done.set)
        while not done.wait(_LOOK_S) and time.monotonic() < deadline:
            if self._loop.ended.is_set():  # a session that was closed under its program; then nobody else calls it
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

    # In a thread for each question

    def _answer(self, link: Link, question: int, request: Request) -> None:
        answer = self._work_out(request)
        with self._lock:
            del self._unanswered[question]
            if isinstance(request, Stop):
                if link not in self._stoppers:
                    return  # `close` has told it, or it has left
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
        except Exception as error:  # whatever the target raises is told to whoever asked; the log has its traceback
            logger.info("a question to program %s failed", self._target.name, exc_info=True)
            return ControlProblem(f"{type(error).__name__}: {error}")


def _say(link: Link, answer: Answer) -> None:
    with contextlib.suppress(LinkClosed):  # whoever asked has left
        link.send(answer)
