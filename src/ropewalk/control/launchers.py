"""What of this user runs on this machine: finding their launchers, and sending them requests.

The other end is `control/server.py`. Everything here has a timeout, because a launcher may be stopped or hang at any
point.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import tempfile
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from ropewalk.control.server import ASKER, CONTROL_CODEC, Announcement, Answer, ControlProblem, LastViewIs, Request
from ropewalk.control.view import View
from ropewalk.errors import FrameError, LinkClosed, RopewalkError
from ropewalk.processes.left_folders import is_ours, sweep
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.kernel import LONGEST_WAIT_S, is_running
from ropewalk.transport.link import Link

ANSWER_S = 5.0
"""Timeout in seconds for reaching a launcher, and for its answer to a request that needs no work."""
_MAX_FILE_BYTES = 64 * 1024

AnswerT = TypeVar("AnswerT", bound=Answer)


class LauncherGone(RopewalkError):
    """The target has ended, perhaps while it was asked.

    Attributes:
        last: what it showed last, if it has said that.
    """

    last: View | None = None


class LauncherSilent(RopewalkError, TimeoutError):
    """The launcher exists but does not answer in time."""


class RequestFailed(RopewalkError):
    """The launcher answered that it cannot carry out the request."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program, pool, or other target in a process of this user.

    Attributes:
        file: that announces the target.
        announcement: its content.
    """

    file: Path
    announcement: Announcement

    @property
    def name(self) -> str:
        """The target's name."""
        return self.announcement.name

    @property
    def kind(self) -> str:
        """The target's kind, as in `View`."""
        return self.announcement.kind

    @property
    def id(self) -> str:
        """The target's id, as in `View`; "" for another version's."""
        return self.announcement.id

    @property
    def within(self) -> str:
        """Name of the process of a session that is the launcher; "" if it is no such process."""
        return self.announcement.within

    @property
    def pid(self) -> int:
        """The launcher's process ID."""
        return self.announcement.pid

    def __str__(self) -> str:
        kind = "" if self.kind == "program" else f"{self.kind}, "
        script = f", {self.announcement.script}" if self.announcement.script else ""  # many a pool is called "pool-1"
        return f"{self.name} ({kind}pid {self.pid}{script})"

    @contextlib.contextmanager
    def connect(self, timeout_s: float = ANSWER_S) -> Generator[LauncherConnection]:
        """Connect to the launcher; the link is closed on leaving the block.

        Args:
            timeout_s: seconds to wait for the launcher.

        Raises:
            LauncherGone: the target has ended.
            LauncherSilent: the launcher did not answer in time.
            TransportRefused: it runs another Python or another version of Ropewalk; the message says which.
        """
        credentials = Credentials(self.announcement.run_id, ASKER, self.announcement.secret)
        try:
            link = dial(parse_address(self.announcement.address), credentials, CONTROL_CODEC, timeout_s=timeout_s)
        except LinkClosed as error:
            if isinstance(error.__cause__, TimeoutError):
                raise self.silent(timeout_s) from error
            raise LauncherGone(f"{self} has ended") from error
        try:
            yield LauncherConnection(self, link)
        finally:
            link.close()

    def silent(self, timeout_s: float) -> LauncherSilent:
        """The error for a missing answer, with the state of the process according to the system."""
        state, advice = "", f"look at it, or end it with kill {self.pid}"
        with contextlib.suppress(psutil.Error):
            status = psutil.Process(self.pid).status()
            state = f"its process is {status}"
            if status == psutil.STATUS_STOPPED:
                state += " (by Ctrl-Z or SIGSTOP)"
                advice = f"kill -CONT {self.pid} lets it go on"
        words = "; ".join(filter(None, [f"{self} has not answered for {timeout_s:g} s", state, advice]))
        return LauncherSilent(words, pid=self.pid, timeout_s=timeout_s)


class LauncherConnection:
    """A link to a launcher, for one request after the other."""

    def __init__(self, launcher: Launcher, link: Link) -> None:
        self._launcher = launcher
        self._link = link

    def ask(self, request: Request, answer_type: type[AnswerT], timeout_s: float = ANSWER_S) -> AnswerT:
        """Send a request, and wait for the answer.

        Args:
            request: the request.
            answer_type: the expected type of the answer.
            timeout_s: seconds to wait for the answer.

        Returns:
            The answer.

        Raises:
            LauncherGone: the target ended before it answered.
            LauncherSilent: there was no answer in time.
            RequestFailed: the launcher cannot carry out the request; the message says why.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._link.send(request)
            answer = self._receive(deadline)
        except LinkClosed as error:
            raise self._gone(self.last_view()) from error
        if answer is None or isinstance(answer, LastViewIs):
            raise self._gone(answer.view if answer else None)
        if isinstance(answer, ControlProblem):
            raise RequestFailed(f"{self._launcher}: {answer.text}")
        if not isinstance(answer, answer_type):
            raise RequestFailed(f"{self._launcher} answered {request} with {answer}; please report this")
        return answer

    def last_view(self) -> View | None:
        """Return what the target showed last, if it has ended since the last request and has said that."""
        with contextlib.suppress(BlockingIOError, LinkClosed, FrameError, OSError):
            while received := self._link.read_ready():
                if isinstance(received.message, LastViewIs):
                    return received.message.view
        return None

    def _gone(self, last: View | None) -> LauncherGone:
        return LauncherGone(f"{self._launcher} has ended", last=last)

    def _receive(self, deadline: float) -> object:
        started = time.monotonic()
        poller = select.poll()
        poller.register(self._link.stream.fileno(), select.POLLIN)
        while True:
            try:
                received = self._link.read_ready()
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._launcher.silent(round(deadline - started, 1)) from None
                poller.poll(1000 * min(left_s, LONGEST_WAIT_S))
                continue
            return None if received is None else received.message


def usual_parents(run_folder: Path) -> list[Path]:
    """The folders in which launchers of this user make their run folders.

    Args:
        run_folder: the setting of that name.
    """
    named = [run_folder, *(Path(os.environ.get(variable) or "/") for variable in ("XDG_RUNTIME_DIR", "TMPDIR"))]
    candidates = [*named, Path(tempfile.gettempdir()), Path("/tmp")]
    return list(dict.fromkeys(Path(os.path.realpath(folder)) for folder in candidates if folder != Path("/")))


def find_launchers(parents: Iterable[Path]) -> list[Launcher]:
    """The targets that are announced in a run folder below `parents`, by name and process ID.

    Folders of other users are skipped, because anybody may write to `/tmp`; files of processes that are certainly gone
    are removed.
    """
    parents = list(parents)
    sweep(parents)
    found: list[Launcher] = []
    for parent in parents:
        for folder in parent.glob("ropewalk-*"):
            if is_ours(folder):
                found += filter(None, map(_read, folder.glob("control-*.json")))
    return sorted(found, key=lambda launcher: (launcher.name, launcher.pid, launcher.file))


def _read(file: Path) -> Launcher | None:
    """The target that a file announces; None if it is not this user's, is incomplete, or its process is gone."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            facts = os.fstat(opened.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                return None
            announcement = msgspec.json.decode(opened.read(_MAX_FILE_BYTES), type=Announcement)
        parse_address(announcement.address)
    except (OSError, ValueError, RecursionError):  # a message that does not decode is a ValueError
        return None
    return Launcher(file, announcement) if is_running(announcement.pid) else None
