"""What a started `Process` knows of its process, under the name that the standard library gave it: `Popen`.

    start ──▶ asked for ──Up──▶ up ──Exited──▶ ended
                  └──────NotStarted, Exited──────▲

`start` does not wait for the process. A wish that comes before it is up (to terminate it)
is carried out when it is: the user's code then never runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import weakref

from ropewalk.compat.process_payload import Loaded, PackedProcess, Up
from ropewalk.errors import LinkClosed, PoolClosed, StartFailed
from ropewalk.processes.deaths import record_of
from ropewalk.processes.messages import Exited, NotStarted, TaskReport
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.session import Session
from ropewalk.transport.link import Link, Received

logger = logging.getLogger(__name__)

#: A process may be here before its agent has told that it has started it; then we look so often.
_LOOK_S = 0.001


class Popen:
    """One process of a session, and its owner there.

    Args:
        name: of the process, for people.
        spec: what to start.
        packed: the process object; ours from now on.
        session: leased for us; given back when the process has ended.

    Raises:
        StartFailed: the session gives no processes any more.
    """

    def __init__(self, name: str, spec: ProcessSpec, packed: PackedProcess, session: Session) -> None:
        self.pid: int | None = None
        """None until it is known; see `wait_for_pid`."""
        self.failure: str | None = None
        """Why the process ended, unless that was well."""
        self._name = name
        self._packed = packed
        self._session = session
        self._owner_pid = os.getpid()
        self._host = os.uname().nodename
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._wish = 0
        """The signal that was to end it."""
        self._returncode: int | None = None
        self._not_started: StartFailed | None = None
        self._known = threading.Event()
        """Set when it is up, or will never be."""
        self._ended = threading.Event()
        self.sentinel, self._sentinel_writer = os.pipe()
        self._close_sentinel = weakref.finalize(self, os.close, self.sentinel)
        self._close_sentinel.atexit = False
        try:
            self._id = session.processes.start(spec, self)
        except BaseException:
            self._finish(1, "")
            raise

    # As multiprocessing calls it

    def poll(self) -> int | None:
        """The exit code as in the standard library; None while the process runs, or is still to come."""
        return self._returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, for so many seconds at most; returns the exit code or None."""
        self._ended.wait(timeout)
        return self._returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._end_with(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, which also ends all that the process has started."""
        self._end_with(signal.SIGKILL)

    def close(self) -> None:
        """Close the sentinel."""
        self._close_sentinel()

    def __reduce__(self) -> str:
        raise TypeError("a Process that was started cannot be sent to another process; send its name or its pid")

    # Beyond that

    def interrupt(self) -> None:
        """Send SIGINT, as the terminal does to all processes of a program."""
        self._end_with(signal.SIGINT)

    def interrupt_soon(self) -> None:
        """The same, from the handler of a signal: the thread that it came to may hold any lock."""
        self._session.loop.call_soon(self.interrupt)

    def wait_for_pid(self) -> int | None:
        """The process id on its host, as soon as it is known; None if it was ended before it had one.

        Raises:
            StartFailed: it could not be started.
        """
        self._known.wait()
        self.check_started()
        return self.pid

    def check_started(self) -> None:
        """Complain if it could not be started.

        Raises:
            StartFailed: that is so.
        """
        if self._not_started:
            raise StartFailed(str(self._not_started)) from self._not_started.__cause__

    def _end_with(self, number: int) -> None:
        with self._lock:
            if self._returncode is not None or self._owner_pid != os.getpid():
                return
            self._wish = number
            is_up = self.pid is not None
        if is_up or number == signal.SIGKILL:
            self._session.processes.signal(self._id, number)
        else:
            self._session.processes.withdraw(self._id)  # one that has a host is told when it is up

    # As the owner, on the loop

    def on_link(self, id: str, link: Link) -> None:
        self._host = self._session.processes.host_of(id) or self._host
        self._link = link  # a second one, if its first attempt to reach us came to nothing

    def on_message(self, id: str, received: Received) -> None:
        if isinstance(received.message, Up):
            self._begin(id)
        elif isinstance(received.message, Loaded):
            self._packed.loaded()

    def _begin(self, id: str) -> None:
        pid = self._session.processes.pid_of(id)
        if not pid and self._returncode is None:  # only now the agent knows whom a signal is for
            self._session.loop.call_later(_LOOK_S, lambda: self._begin(id))
            return
        with self._lock:
            self.pid = self.pid or pid or None
        self._known.set()
        if self._wish:  # an interrupt is for the user's code, which this process has not met yet
            self._session.processes.signal(id, signal.SIGTERM if self._wish == signal.SIGINT else self._wish)
            return
        assert self._link
        with contextlib.suppress(LinkClosed):  # its end is reported in a moment
            self._packed.send(self._link)

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        self.pid = self.pid or exited.pid or None
        code = exited.exit_code
        if self.pid is None and self._wish:
            code = -self._wish  # it had no host yet
        failure = record_of(exited, name=self._name, host=self._host).describe()
        if exited.ended_by and not self._wish:
            failure = f"{failure} ({exited.ended_by})"
        if code < 0 and not self._wish:  # of an exception it has printed a traceback itself
            logger.warning("%s", failure)
        # Whoever waits for the end goes on when what the process printed is out, as he would with multiprocessing.
        self._session.output.when_shown(lambda: self._finish(code, failure if code else ""))

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        self._cannot_start(failure.reason, None)

    def on_failed(self, error: Exception) -> None:
        if not self._known.is_set():
            self._session.processes.signal(self._id, signal.SIGKILL)
            self._cannot_start(str(error), error)

    def on_report(self, id: str, report: TaskReport) -> None:
        pass  # only pools peek

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        pass  # nobody can end it well but the user

    def on_event(self, text: str) -> None:
        pass  # the session has logged it

    def _cannot_start(self, reason: str, cause: Exception | None) -> None:
        if self._returncode is not None:
            return
        text = f"{self._name} could not be started: {reason}"
        self._not_started = StartFailed(text)
        self._not_started.__cause__ = cause
        if not self._wish and not isinstance(cause, PoolClosed):
            logger.error("%s", text)
        self._finish(1, text)

    def _finish(self, code: int, failure: str) -> None:
        with self._lock:
            if self._returncode is not None:
                return
            self.failure = failure or None
            self._returncode = code
        self._packed.give_up()
        os.write(self._sentinel_writer, b"\0")  # a forked child may keep the pipe open, and its end would not be seen
        os.close(self._sentinel_writer)
        self._known.set()
        self._ended.set()
        self._session.release()
