"""`Popen`: the handle of a started `Process` on its process, named as in the standard library.

    start ──▶ requested ──Up──▶ up ──Exited──▶ ended
                  └──────NotStarted, Exited──────▲

`start` does not wait for the process. A signal that is requested before the process is up is sent once it is up; the
user's code then never runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import weakref
from multiprocessing.process import BaseProcess
from typing import Any, cast

from ropewalk.compat.process_payload import PROCESS, Loaded, PackedProcess, Up
from ropewalk.compat.requires import resources_of
from ropewalk.control.lone_processes import process_has_ended, show_processes
from ropewalk.errors import LinkClosed, PoolClosed, StartFailed
from ropewalk.processes import bootstrap
from ropewalk.processes.deaths import record_of
from ropewalk.processes.fleet import default_resources
from ropewalk.processes.messages import Exited, NotStarted, TaskReport
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.session import Session
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.link import Link, Received

logger = logging.getLogger(__name__)

_ENTRY = "ropewalk.compat.process_main:main"
_LOOK_S = 0.001
"""Polling interval in seconds for a process that connects before its agent has reported its start."""


class Popen:
    """One process of a session; the session treats this object as its owner.

    Args:
        name: name of the process in messages.
        spec: the process to start.
        packed: the pickled process object; this object owns it from now on.
        session: a session with a lease for this object, which is released when the process has ended.

    Raises:
        StartFailed: the session starts no more processes.
    """

    def __init__(self, name: str, spec: ProcessSpec, packed: PackedProcess, session: Session) -> None:
        self.pid: int | None = None
        """The process id; None until it is known, see `wait_for_pid`."""
        self.failure: str | None = None
        """How the process failed; None if it succeeded or still runs."""
        self.record: DeathRecord | None = None
        """How the process ended, with all of its last output; None while it runs, or if it never did."""
        self._name = name
        self._packed = packed
        self._session = session
        self._owner_pid = os.getpid()
        self._host = os.uname().nodename
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._wish = 0
        """Number of the signal that was requested to end the process, or 0."""
        self._returncode: int | None = None
        self._not_started: StartFailed | None = None
        self._known = threading.Event()
        """Set when the process is up, or will never be."""
        self._ended = threading.Event()
        self.sentinel, self._sentinel_writer = os.pipe()
        self._close_sentinel = weakref.finalize(self, os.close, self.sentinel)
        self._close_sentinel.atexit = False
        self._id = ""  # the session may fail before it returns the id: `on_failed` then has none
        try:
            self._id = session.processes.start(spec, self)
            if self._not_started:
                session.processes.signal(self._id, signal.SIGKILL)
            show_processes(session)
        except BaseException:
            self._finish(1, "")
            raise

    # The interface of multiprocessing's Popen

    def poll(self) -> int | None:
        """Return the exit code as in the standard library; None until the process has ended."""
        return self._returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the process has ended or `timeout` seconds have passed; returns the exit code or None."""
        self._ended.wait(timeout)
        return self._returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._end_with(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, which also ends all processes that the process has started."""
        self._end_with(signal.SIGKILL)

    def close(self) -> None:
        """Close the sentinel."""
        self._close_sentinel()

    def __reduce__(self) -> str:
        raise TypeError("a Process that was started cannot be sent to another process; send its name or its pid")

    # Additions

    def interrupt(self) -> None:
        """Send SIGINT, as a terminal does to all processes of a program."""
        self._end_with(signal.SIGINT)

    def interrupt_soon(self) -> None:
        """Send SIGINT from within a signal handler, whose thread may hold any lock."""
        self._session.loop.call_soon(self.interrupt)

    def print_stacks(self) -> None:
        """Have the process print the stacks of its threads to stderr, which it also does while C code runs."""
        if self.pid is not None and self._returncode is None:
            self._session.processes.signal(self._id, signal.SIGUSR2)

    def wait_for_pid(self) -> int | None:
        """Wait for the process id on its host; returns None if the process was terminated before it had one.

        Raises:
            StartFailed: it could not be started.
        """
        self._known.wait()
        self.check_started()
        return self.pid

    def check_started(self) -> None:
        """Check that the process could be started.

        Raises:
            StartFailed: it could not be started.
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
            self._session.processes.withdraw(self._id)  # a process that has a host gets the signal when it is up

    # Callbacks of the session, on its loop

    def on_link(self, id: str, link: Link) -> None:
        self._host = self._session.processes.host_of(id) or self._host
        self._link = link  # possibly a second link, if the first attempt to connect failed

    def on_message(self, id: str, received: Received) -> None:
        if isinstance(received.message, Up):
            self._begin(id)
        elif isinstance(received.message, Loaded):
            self._packed.loaded()

    def _begin(self, id: str) -> None:
        pid = self._session.processes.pid_of(id)
        if not pid and self._returncode is None:  # the agent can deliver a signal only once it knows the pid
            self._session.loop.call_later(_LOOK_S, lambda: self._begin(id))
            return
        with self._lock:
            self.pid = self.pid or pid or None
        self._known.set()
        if self._wish:  # an interrupt is for the user's code, which this process has not received yet
            self._session.processes.signal(id, signal.SIGTERM if self._wish == signal.SIGINT else self._wish)
            return
        assert self._link
        with contextlib.suppress(LinkClosed):  # the agent is about to report the end of the process
            self._packed.send(self._link)

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        process_has_ended(self._session)
        self.pid = self.pid or exited.pid or None
        code = exited.exit_code
        if self.pid is None and self._wish:
            code = -self._wish  # the process had no host yet
        record = record_of(exited, name=self._name, host=self._host)
        # That its owner ended it is not news to a caller of `terminate` or `kill`.
        self.record = dataclasses.replace(record, ended_by="") if self._wish else record
        failure = self.record.describe()
        if code < 0 and not self._wish:  # for an exception, the process itself has printed a traceback
            logger.warning("%s", failure)
        # Threads that wait for the end resume after the output of the process is shown, as with multiprocessing.
        self._session.output.when_shown(lambda: self._finish(code, failure if code else ""))

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        self._cannot_start(failure.reason, None)

    def on_failed(self, error: Exception) -> None:
        if not self._known.is_set():
            self._session.processes.signal(self._id, signal.SIGKILL)
            self._cannot_start(str(error), error)

    def on_report(self, id: str, report: TaskReport) -> None:
        pass  # only pools use this

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        pass  # only the user can stop the process in an orderly way

    def on_event(self, text: str, kind: str = "") -> None:
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
        os.write(self._sentinel_writer, b"\0")  # a forked child may keep the pipe open, so closing it is not enough
        os.close(self._sentinel_writer)
        self._known.set()
        self._ended.set()
        self._session.release()


def spec_of(process: BaseProcess, session: Session, preload: tuple[str, ...]) -> ProcessSpec:
    """Return what to start for a process object."""
    facts = cast(Any, process)  # the standard library's private attributes
    # A default name ends with the number; a process started in a worker counts from 1 again, after the worker's name.
    number = facts._identity[-1]
    group = process.name.removesuffix(f"-{number}").removesuffix(f":{number}")
    inside = bootstrap.current if len(facts._identity) == 1 else None
    resources = resources_of(facts._target, type(process).run, type(process))
    return ProcessSpec(
        group=f"{inside.name}/{group}" if inside else group,
        rank=number,
        entry=_ENTRY,
        codec=PROCESS,
        resources=resources or default_resources(session.settings),
        bounded=resources is not None,
        preload=preload,
        plain_output=True,
        kind="process",
        limits_threads=resources is not None,
    )
