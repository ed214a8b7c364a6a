"""A manager's process, as the process that started it sees it.

start ─▶ requested ──ManagerReady──▶ up ── StopManager, SIGTERM, SIGKILL ──▶ ended
             └──NotReady, NotStarted, Exited───────────────────────────────────▲
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.control.lone_processes import process_has_ended, show_processes
from ropewalk.engines.resources import Resources
from ropewalk.errors import InitializerFailed, StartFailed
from ropewalk.processes import bootstrap
from ropewalk.processes.deaths import record_of
from ropewalk.processes.fleet import default_resources
from ropewalk.processes.messages import Exited, NotStarted, Retired, TaskReport
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import leased
from ropewalk.sharing.manager_messages import MANAGER, Contents, ManagerReady, NotReady, StopManager, pack
from ropewalk.sharing.object_calls import ends
from ropewalk.transport.failures import rebuild_error
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received

_ENTRY = "ropewalk.sharing.manager_process:main"
_NEWS_S = 2.0
"""Seconds that a manager's host has to report the reason when the manager's link ends."""
_SHUT_DOWN = "its manager was shut down"
_numbers = itertools.count(1)


class ManagerProcess:
    """One manager's process, and its owner in the session.

    Args:
        kind: the kind of the manager, for messages.
        contents: the registry and the initializer.
        authkey: the key of the manager.
        session: the session that starts the process; by default that of the engine.
        engine: the engine whose session is used.
        resources: the resources that the process requests.

    Raises:
        NotPicklable: the contents cannot be sent.
        StartFailed: the session starts no processes.
    """

    def __init__(
        self,
        kind: str,
        contents: Contents,
        authkey: bytes,
        session: Session | None,
        engine: str | None,
        resources: Resources | None,
    ) -> None:
        inside = bootstrap.current
        group = f"manager-{next(_numbers)}"
        if inside:
            group = f"{inside.name}/{group}"
        self.name = f"{group} ({kind})"
        self.address = ""
        """The address of the manager; empty until it is up."""
        self.exitcode: int | None = None
        """Its exit code, or a negative signal number; None while it has not ended."""
        self.failure = ""
        """A description of its end, in one line."""
        self._pid = 0
        self._host = os.uname().nodename
        self._owner_pid = os.getpid()
        self._known, self._ended = threading.Event(), threading.Event()
        self._problem: Exception | None = None
        self._link: Link | None = None
        self._hear_no_more: Callable[[], object] = lambda: None
        self.told_to_end = False
        """Whether it was asked to end."""
        self._at_exit: Callable[[], object] = lambda: None
        self._id = ""  # the session may fail before it returns the id: `on_failed` then has none
        self.session = leased(session, engine=engine)
        try:
            self._begin, self._parts = pack(contents, self.name, self.session.run_id, authkey)
            spec = ProcessSpec(
                group,
                0,
                _ENTRY,
                MANAGER,
                resources or default_resources(self.session.settings),
                plain_output=True,
                kind="manager",
                limits_threads=resources is not None,
            )
            self._id = self.session.processes.start(spec, self)
            if self._problem:
                self.session.processes.signal(self._id, signal.SIGKILL)
            show_processes(self.session)
        except BaseException:
            self.session.release()
            raise

    # Methods of a process

    @property
    def pid(self) -> int | None:
        """Its process id on its host; None until it is known."""
        return self._pid or None

    def wait_until_up(self) -> None:
        """Wait until it can be called.

        Raises:
            InitializerFailed: its initializer raised; the cause is that exception.
            StartFailed: it could not be started.
        """
        try:
            self._known.wait()
        except BaseException:  # Ctrl-C
            self.kill()
            raise
        if self._problem:
            raise self._problem

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""
        if self._owner_pid == os.getpid():
            self._ended.wait(timeout)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._end_with(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, which also ends all processes that it has started."""
        self._end_with(signal.SIGKILL)

    def stop(self, timeout_s: float) -> None:
        """End it: ask it to, send SIGTERM after `timeout_s` seconds, and SIGKILL after as many again."""
        if self._owner_pid != os.getpid():
            return
        self.told_to_end = True
        if not self.is_alive():
            return
        if self._link:
            self._link.send_if_open(StopManager())
        for end in (self.terminate, self.kill):
            self.join(timeout_s)
            if self.is_alive():
                end()
        self.join(max(timeout_s, _NEWS_S))  # the agent kills a process that does not end

    def stop_soon(self, timeout_s: float) -> None:
        """As `stop`, from a thread of its own; the garbage collector may call this anywhere.

        The thread in which it comes may hold a lock for which the loop waits, or one of `threading`; and only the loop
        hears that the process has ended.
        """
        if self._owner_pid != os.getpid():
            return
        thread = threading.Thread(target=self.stop, args=(timeout_s,), name=f"{self.name}-end", daemon=True)
        self.session.loop.call_soon(thread.start)

    def stop_at_exit(self, timeout_s: float) -> None:
        """Call `stop` at the end of the interpreter, if the process is there still."""
        self._at_exit = functools.partial(self.stop, timeout_s)
        atexit.register(self._at_exit)
        if not self.is_alive():
            atexit.unregister(self._at_exit)

    def how_it_ended(self) -> str:
        """Return why it cannot be reached any more, as far as that is known within a moment; empty if it is not."""
        if not self.told_to_end:
            self.join(_NEWS_S)
        return self.failure or (_SHUT_DOWN if self.told_to_end else "")

    def _tell(self, news: Retired) -> None:
        if self._link:
            self._link.send_if_open(news)

    def _end_with(self, number: int) -> None:
        if self.is_alive() and self._owner_pid == os.getpid():
            self.session.processes.signal(self._id, number)

    # Methods of the owner, on the loop

    def on_link(self, id: str, link: Link) -> None:
        self._link = link
        self._host = self.session.processes.host_of(id) or self._host
        parts: Sequence[Part] = self._parts
        self._parts = []
        link.send_if_open(self._begin, parts)
        self._hear_no_more = self.session.retirements.listen(self._tell)

    def on_message(self, id: str, received: Received) -> None:
        message: Any = received.message
        if isinstance(message, ManagerReady):
            self._pid, self.address = message.pid, message.address
            ends[self.address] = self.how_it_ended
            self._known.set()
        elif isinstance(message, NotReady):
            error = rebuild_error(message.failure, self.name)
            kind = InitializerFailed if message.by_initializer else StartFailed
            what = "its initializer raised" if message.by_initializer else "its types could not be unpickled there:"
            self._fail(kind(f"{self.name} could not be started: {what} {error!r}"), error)

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        process_has_ended(self.session)
        self._pid = self._pid or exited.pid
        self.failure = record_of(exited, name=f"its manager {self.name}", host=self._host).describe()
        if self.told_to_end:
            self.failure = _SHUT_DOWN
        self._finish(exited.exit_code)

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        self._fail(StartFailed(f"{self.name} could not be started: {failure.reason}"), None)
        self._finish(1)

    def on_failed(self, error: Exception) -> None:
        if not self._known.is_set():
            self.session.processes.signal(self._id, signal.SIGKILL)
            self._fail(StartFailed(f"{self.name} could not be started: {error}"), error)
            self._finish(1)

    def on_report(self, id: str, report: TaskReport) -> None:
        pass  # only pools use reports

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        pass  # its objects are lost with its host

    def on_event(self, text: str, kind: str = "") -> None:
        pass  # the session has logged it

    def _fail(self, problem: Exception, cause: BaseException | None) -> None:
        if self._problem is None and not self._known.is_set():
            problem.__cause__ = cause
            self._problem = problem
            self._known.set()

    def _finish(self, code: int) -> None:
        if self.exitcode is not None:
            return
        self._link = None
        self._hear_no_more()
        self.exitcode = code
        if self.address:
            how = self.failure
            ends[self.address] = lambda: how  # and forget the rest of this object
        self._fail(StartFailed(f"{self.name} could not be started: {self.failure}"), None)
        self._ended.set()
        atexit.unregister(self._at_exit)
        self.session.release()


__all__ = ["ManagerProcess"]
