"""`Process`: the process class of `multiprocessing`, for processes of agents that may be on other hosts.

    Process.start ─▶ PackedProcess ─▶ Session.start ─▶ agent ─▶ process_main ─▶ Process._bootstrap ─▶ run
         │                                                                           (the standard library's)
         └── Popen ◀── Up, Exited ── session's loop

It is a subclass of the standard library's class, which keeps the list of children and, in the new process, sets
`current_process`, calls `run` and converts its end into an exit code. So `multiprocessing.active_children` and similar
functions see these processes, and the standard library's cleanup at the end of the program includes them.

What starts processes is imported by the first `start`, while the agent's interpreter starts (`interpreter_ahead.py`);
a process that starts no others does not import it.

In addition, the target may be a lambda or a function of `__main__` without a guard, `failure` tells how a process
failed, and no process outlives the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from ropewalk.errors import StartFailed
from ropewalk.processes import interrupts
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.open_sessions import before_closing
from ropewalk.user_frames import shortened

if TYPE_CHECKING:
    from ropewalk.compat.process_popen import Popen
    from ropewalk.processes.session import Session
    from ropewalk.settings import Settings

active_children: Callable[[], list[BaseProcess]] = multiprocessing.active_children
current_process: Callable[[], BaseProcess] = multiprocessing.current_process
parent_process: Callable[[], BaseProcess | None] = multiprocessing.parent_process


class ProcessSource:
    """The session in which a class starts its processes; unpickled in another process, it is that process's session.

    Args:
        settings: settings of the shared session; None means the settings of this process.
        session: a session to use instead.
    """

    def __init__(self, settings: Settings | None = None, session: Session | None = None) -> None:
        self._settings = settings
        self._session = session

    def __reduce__(self) -> tuple[type[ProcessSource], tuple[()]]:
        return ProcessSource, ()

    def session(self) -> Session:
        """Return the current session."""
        from ropewalk.processes.shared_sessions import default_session

        return self._session or default_session(settings=self._settings)

    def lease(self) -> Session:
        """Return the session with a lease on it; see `Session.lease`."""
        from ropewalk.processes.shared_sessions import leased

        return leased(self._session, settings=self._settings)

    def begin_ahead(self) -> None:
        """Start what a first session needs anyway, before it is imported."""
        from ropewalk import interpreter_ahead

        if self._session is None:
            interpreter_ahead.begin(settings=self._settings)


class Process(BaseProcess):
    """A process that runs a function, with the interface of `multiprocessing.Process`.

    Args:
        group: always None; present for compatibility with the standard library.
        target: the function that `run` calls; it may be a lambda, a closure or a function of `__main__`.
        name: name of the process in output and in errors.
        args: arguments of `target`, copied when the process is started.
        kwargs: keyword arguments of `target`.
        daemon: whether the process ends with the process that created it, instead of being waited for; a daemonic
            process may not have children.

    Example:
        >>> import ropewalk
        >>> process = ropewalk.Process(target=pow, args=(2, 3))
        >>> process.start()
        >>> process.join()
        >>> process.exitcode
        0
    """

    _start_method = None
    _source = ProcessSource()
    _preload: tuple[str, ...] = ()
    """Names of the modules that the fork server imports."""

    @staticmethod
    def _Popen(process: BaseProcess) -> Popen:
        """Start a process; `start` calls this."""
        ours = cast(Process, process)
        ours._source.begin_ahead()
        from ropewalk.compat.process_payload import PackedProcess
        from ropewalk.compat.process_popen import Popen, spec_of

        packed = PackedProcess(ours)
        _hook_interrupts()
        with interrupts_deferred:
            try:
                session = ours._source.lease()
            except BaseException:
                packed.give_up()
                raise
            _hook_exit()
            return Popen(ours.name, spec_of(ours, session, ours._preload), packed, session)

    @staticmethod
    def _after_fork() -> None:
        """Do nothing: the process was not forked from its parent, and must keep the objects unpickled in it."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, or `timeout` seconds have passed.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            StartFailed: it could not be started.
        """
        try:
            super().join(timeout)
        except KeyboardInterrupt as error:
            if self._running and self._running.pid:
                error.add_note(f"{self.name} (pid {self._running.pid}) still ran, and is interrupted too")
            if not _interrupts_are_passed_on():
                _interrupt_children()
            shortened(error)
            raise
        if self._running and not util.is_exiting():  # type: ignore[attr-defined]  # at exit it would have no use
            self._running.check_started()

    @property
    def exitcode(self) -> int | None:
        """The exit code: the argument of `exit`, a negative signal number, or None while the process runs.

        Raises:
            StartFailed: it could not be started.
        """
        code = super().exitcode
        if self._running:
            self._running.check_started()
        return code

    @property
    def ident(self) -> int | None:
        """The process id on its host, waiting until it is known; None before `start`.

        Raises:
            StartFailed: it could not be started.
        """
        if self._running and not cast(Any, self)._closed:
            return self._running.wait_for_pid()
        return super().ident

    pid = ident  # pyright: ignore[reportIncompatibleMethodOverride]  # the stubs declare them as different properties

    @property
    def failure(self) -> str | None:
        """How the process failed, in one line: cause, host, last output. None if it succeeded or still runs.

        Example:
            Process-1 on host n17 (pid 4711) was killed by SIGSEGV (segmentation fault) after 3.2 s; last output: ...
        """
        cast(Any, self)._check_closed()
        return self._running.failure if self._running else None

    @property
    def _running(self) -> Popen | None:
        return cast("Popen | None", cast(Any, self)._popen)


def cpu_count(session: Session | None = None) -> int:
    """Return the number of CPUs for this program: on the engine's hosts that are up, or else on this host.

    In a process of Ropewalk, it is the number of CPUs that the process itself may use.

    Args:
        session: the session whose hosts count; None is the shared session of this process.
    """
    from ropewalk.processes.shared_sessions import default_session

    session = session or default_session()
    shares = [agent.share for agent in session.hosts()]
    return int(sum(share.resources.cpus for share in shares if share.slots)) or session.default_size


def _children() -> list[Process]:
    mine = os.getpid()  # a forked child has inherited the list
    ours = [child for child in active_children() if isinstance(child, Process)]
    return [child for child in ours if cast(Any, child)._parent_pid == mine]


def _interrupt_children() -> None:
    for child in _children():
        cast(Any, child)._popen.interrupt()


def _hook_interrupts() -> None:
    """Forward Ctrl-C to the children, which get no signal from the terminal; a handler that the user has set stays.

    Programs that catch KeyboardInterrupt, and then join their processes or exit, expect that the children got it too.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _tell_and_raise)


def _tell_and_raise(number: int, frame: FrameType | None) -> None:
    interrupts.tell_of_interrupt()
    signal.default_int_handler(number, frame)


def _interrupt_children_soon() -> None:
    for child in _children():
        cast(Any, child)._popen.interrupt_soon()


interrupts.telling_handlers.append(_tell_and_raise)
interrupts.before_interrupt.append(_interrupt_children_soon)


def _interrupts_are_passed_on() -> bool:
    """Whether the children have already received a Ctrl-C: a second signal would interrupt their handling of it."""
    return signal.getsignal(signal.SIGINT) in interrupts.telling_handlers


_hooked = False


def _hook_exit() -> None:
    """Register the cleanup of children at exit: it must run before the session closes, so register after it opened."""
    global _hooked
    if not _hooked:
        _hooked = True
        before_closing(_end_children)


def _end_children() -> None:
    """End daemonic children and wait for the others, as `multiprocessing` does."""
    children = _children()
    died_of_interrupt = getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")
    if died_of_interrupt and not _interrupts_are_passed_on():
        _interrupt_children()  # a terminal would have sent them the signal, too
    for child in children:
        if child.daemon:
            child.terminate()
    for child in children:
        try:
            child.join()
        except StartFailed:  # already reported
            pass
        except KeyboardInterrupt as error:  # there is no caller who could catch it
            words = "; ".join(getattr(error, "__notes__", [])) or f"the wait for {child.name} was interrupted"
            print(f"\nropewalk: at the end of the script, {words}", file=sys.stderr)
            return  # the session ends the processes that are left
