"""The launcher's control socket, by which other terminals and the page of the same user see what runs, and end it.

    ropewalk ps / logs / stop / stack, the page          launcher
      1. reads <run folder>/control-*.json ◀──writes──── ControlServer
      2. dials the socket named in it ─────handshake───▶ its loop; uid and secret are checked
      3. Look Stop Act LogFiles Stacks ────────────────▶ a thread of its own for each ──▶ ControlTarget
         ViewIs ActionDone LogFilesAre StacksAre ControlProblem ◀── its answer
         LastViewIs ◀──────────────────────────────────── to every client, when the target has ended

The target may block: the loop, and other requests, go on. The other end is `control/launchers.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

from ropewalk.atomic_files import write_new_file
from ropewalk.control.target import ControlTarget
from ropewalk.control.view import View
from ropewalk.escaping import escaped
from ropewalk.processes import bootstrap
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.loop import Loop, Timer
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

_numbers = itertools.count(1)  # several targets of one process may share a run folder


# --- messages ---------------------------------------------------------------------------------------------------------


class Look(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Asks what the target shows now; answered by `ViewIs`.

    Attributes:
        panels: as for `Observable.view`.
    """

    panels: dict[str, int] = {}


class Stop(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Asks the target to stop; answered by `ViewIs` when it has ended."""

    grace_s: float | None


class LogFiles(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Asks for the output files of its processes; answered by `LogFilesAre`."""


class Stacks(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Asks for the stacks of its processes; answered by `StacksAre`."""

    node: str | None
    timeout_s: float


class Act(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Asks for one of `View.actions`, or of `View.process_actions` for one process; answered by `ActionDone`."""

    action: str
    process: str = ""


class ViewIs(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """What the target shows now, or showed last."""

    view: View


class LogFilesAre(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """Paths by process name."""

    paths: dict[str, str]


class StacksAre(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """Stacks by process name."""

    stacks: dict[str, str]


class ControlProblem(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """The reason why a request was not answered."""

    text: str


class ActionDone(msgspec.Struct, tag=24, array_like=True, frozen=True):
    """What an action has led to, in words."""

    text: str


class LastViewIs(msgspec.Struct, tag=25, array_like=True, frozen=True):
    """What the target showed last; it is sent without being asked for when the target has ended."""

    view: View


Request = Look | Stop | LogFiles | Stacks | Act
Answer = ViewIs | LogFilesAre | StacksAre | ControlProblem | ActionDone | LastViewIs
CONTROL_CODEC = Codec(Request | Answer)


class Announcement(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The content of `control-*.json`: how to reach something of this user that runs.

    Other versions read it too, to say that they differ: the first five fields keep their names in the file, and the
    others have defaults.

    Attributes:
        name: of the program, pool, or other.
        pid: of the launcher.
        address: of its socket.
        run_id: of the session.
        secret: that a client has to prove.
        kind: as in `View`; a plain text, as other versions may know other kinds.
        id: as in `View`.
        within: name of the process of a session that is its launcher; "" if its launcher is no such process.
        script: name of the file that the launcher runs; "" if it runs none.
    """

    name: str = msgspec.field(name="program")
    pid: int
    address: str
    run_id: str
    secret: str
    kind: str = "program"
    id: str = ""
    within: str = ""
    script: str = ""

    def __repr__(self) -> str:
        return f"<Announcement of {self.kind} {self.name!r}, pid {self.pid}, at {self.address}>"


def name_of_script() -> str:
    """Return the name of the file that this process runs, such as "train.py"; "" if it runs none."""
    first = sys.argv[0] if sys.argv else ""
    return "" if first in ("", "-c", "-m") else escaped(Path(first).name)  # it may be no UTF-8


# --- the server -------------------------------------------------------------------------------------------------------


class ControlServer:
    """Answers requests about one target on a Unix socket in its run folder.

    Args:
        loop: a running loop; it should still run when the server is closed, so that clients learn of the end.
        folder: the run folder, as made by `create_run_folder`; several servers may share it.
        run_id: the run's identifier.
        target: what is looked at.
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
        self._stoppers: list[Link] = []  # clients that wait to learn how it ended
        self._questions = itertools.count()
        self._listener: UnixListener | None = None
        self._closed = threading.Event()
        self._closed.set()
        self._is_wanted = True
        self._opening: Timer | None = None

    def open(self) -> None:
        """Make the target reachable; from any thread.

        Raises:
            OSError: the socket or the file could not be made.
        """
        credentials = Credentials.create(self._run_id, ASKER)
        members = AllowList()
        members.admit(ASKER, credentials.secret)
        _servers.watch(self)
        listener = UnixListener(self._loop, str(self._socket_path), self._run_id, members, CONTROL_CODEC, self._linked)
        self._listener = listener
        self._closed.clear()
        self._loop.call_soon(listener.open)
        announcement = Announcement(
            name=self._target.name,
            pid=self._pid,
            address=str(listener.address),
            run_id=self._run_id,
            secret=credentials.secret,
            kind=self._target.kind,
            id=self._target.id,
            within=bootstrap.current.name if bootstrap.current else "",
            script=name_of_script(),
        )
        try:
            write_new_file(self.file, [msgspec.json.encode(announcement)], durable=False)
        except BaseException:
            self.close()
            raise

    def open_later(self, delay_s: float) -> None:
        """Make the target reachable after a while, unless it is closed before; from any thread, which does not wait."""

        def plan() -> None:
            if self._is_wanted:
                self._opening = self._loop.call_later(delay_s, self._open_late)

        self._loop.call_soon(plan)

    def close_soon(self) -> None:
        """As `close`, without waiting; from any thread, or the loop's. May be called twice."""
        self._is_wanted = False
        if self._pid != os.getpid():
            self.forget()
        elif self._loop.ended.is_set():
            self._close_here()
        else:
            self._loop.call_soon(self._close_here)

    def close(self) -> None:
        """Tell the clients how it ended, and withdraw the announcement.

        May be called twice, and from any thread but the loop's.
        """
        if self._pid != os.getpid():
            self.forget()
            return
        listener = self._withdraw()
        if listener is None:
            self._closed.wait(_CLOSE_S)  # another thread may be closing, and the caller is about to stop the loop
            return
        deadline = time.monotonic() + _CLOSE_S
        self._tell_the_last()
        self._on_loop(listener.close, deadline)
        while any(link.unsent_bytes for link in self._open_links()) and time.monotonic() < deadline:
            time.sleep(0.005)
        self._on_loop(lambda: [self._loop.remove_link(link) for link in self._open_links()], deadline)
        self._closed.set()

    def _withdraw(self) -> UnixListener | None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener:
            with contextlib.suppress(OSError):
                os.unlink(self.file)
        return listener

    def _tell_the_last(self) -> None:
        """Send every client what the target shows now: those that asked for a stop as its answer."""
        with self._lock:
            stoppers, self._stoppers = self._stoppers, []
        others = [link for link in self._open_links() if link not in stoppers]
        if not stoppers and not others:
            return
        last = self._work_out(Look())
        for link in stoppers:
            _say(link, last)
        if isinstance(last, ViewIs):
            for link in others:
                _say(link, LastViewIs(last.view))

    def forget(self) -> None:
        """In a forked child: close the copies of descriptors; the target stays with the parent."""
        if self._listener:
            self._listener.forget()
            self._listener = None

    def _on_loop(self, call: Callable[[], object], deadline: float) -> None:
        done = threading.Event()
        self._loop.call_soon(call)
        self._loop.call_soon(done.set)
        while not done.wait(_LOOK_S) and time.monotonic() < deadline:
            if self._loop.ended.is_set():  # the session was closed while the target ran; then nobody else calls it
                if not done.is_set():
                    call()
                return

    def _open_links(self) -> list[Link]:
        with self._lock:
            return [link for link in self._links if not link.closed]

    # On the loop

    def _open_late(self) -> None:
        self._opening = None
        if self._is_wanted:
            try:
                self.open()
            except OSError as error:
                logger.warning("%s is not shown by ropewalk ps and the page: %s", self._target.name, error)

    def _close_here(self) -> None:
        if self._opening:
            self._opening.cancel()
            self._opening = None
        listener = self._withdraw()
        if listener:
            self._tell_the_last()
            listener.close()
            for link in self._open_links():
                self._loop.remove_link(link)
            self._closed.set()

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
            f"{len(self._unanswered)} questions to {self._target.name} are not answered yet, the oldest ("
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
                case Look(panels):
                    return ViewIs(self._target.view(panels))
                case Stop(grace_s):
                    self._target.stop(grace_s)
                    return ViewIs(self._target.view({}))
                case Act(action, process):
                    return ActionDone(self._target.act(action, process))
                case LogFiles():
                    return LogFilesAre({name: str(path) for name, path in self._target.log_files().items()})
                case Stacks(node, timeout_s):
                    return StacksAre(dict(self._target.stacks(node, timeout_s)))
        except Exception as error:  # any exception of the target is sent to the client; the log has its traceback
            logger.info("a question to %s failed", self._target.name, exc_info=True)
            return ControlProblem(f"{type(error).__name__}: {error}")


class _Servers:
    """The servers that are open: a forked child must not keep their sockets, at which nobody would answer."""

    def __init__(self) -> None:
        self._servers: weakref.WeakSet[ControlServer] = weakref.WeakSet()
        self._hooked = False

    def watch(self, server: ControlServer) -> None:
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._forget)
        self._servers.add(server)

    def _forget(self) -> None:
        for server in list(self._servers):
            server.forget()


_servers = _Servers()


def _say(link: Link, answer: Answer) -> None:
    link.send_if_open(answer)
