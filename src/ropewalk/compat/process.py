"""`Process`: multiprocessing's process over agents that may be on other hosts.

    Process.start ─▶ PackedProcess ─▶ Session.start ─▶ agent ─▶ process_main ─▶ Process._bootstrap ─▶ run
         │                                                                    (the standard library's)
         └── Popen ◀── Up, Exited ── session's loop

It is a subclass of the standard library's own class, which keeps the list of children, and in the new process sets
`current_process`, calls `run` and turns its end into an exit code. So `multiprocessing.active_children` and the like
see our processes, and the standard library's own end at the end of the program works on them.

What is added: the target may be a lambda or live in `__main__` without a guard, `failure` says how a process
ended, and no process outlives the one that started it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, cast

from ropewalk.compat.process_payload import PROCESS, PackedProcess
from ropewalk.compat.process_popen import Popen
from ropewalk.compat.requires import resources_of
from ropewalk.errors import StartFailed
from ropewalk.processes import bootstrap, interrupts
from ropewalk.processes.fleet import default_resources
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.open_sessions import before_closing
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session, leased
from ropewalk.settings import Settings

active_children: Callable[[], list[BaseProcess]] = multiprocessing.active_children
current_process: Callable[[], BaseProcess] = multiprocessing.current_process
parent_process: Callable[[], BaseProcess | None] = multiprocessing.parent_process

_ENTRY = "ropewalk.compat.process_main:main"


class ProcessSource:
    """Where the processes of a class come from; in another process that is the session which that one runs in.

    Args:
        settings: of its shared session; None for those of this process.
        session: this one, instead.
    """

    def __init__(self, settings: Settings | None = None, session: Session | None = None) -> None:
        self._settings = settings
        self._session = session

    def __reduce__(self) -> tuple[type[ProcessSource], tuple[()]]:
        return ProcessSource, ()

    def session(self) -> Session:
        """The session, as it is now."""
        return self._session or default_session(settings=self._settings)

    def lease(self) -> Session:
        """The session, leased; see `Session.lease`."""
        return leased(self._session, settings=self._settings)


class Process(BaseProcess):
    """A process of its own for a function, with the interface of `multiprocessing.Process`.

    Args:
        group: None; it is there as in the standard library.
        target: called by `run`; a lambda, a closure or a function of `__main__` is welcome.
        name: shown in output and in errors.
        args: its arguments, copied when the process is started.
        kwargs: its keyword arguments.
        daemon: end the process with the one that made it, instead of waiting for it; it may have no children.

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
    """Modules that the fork server imports."""

    @staticmethod
    def _Popen(process: BaseProcess) -> Popen:
        """Start a process; called by `start`."""
        ours = cast(Process, process)
        packed = PackedProcess(ours)
        _hook_interrupts()
        with interrupts_deferred:
            try:
                session = ours._source.lease()
            except BaseException:
                packed.give_up()
                raise
            _hook_exit()
            return Popen(ours.name, ours._spec(session), packed, session)

    @staticmethod
    def _after_fork() -> None:
        """Nothing: the process was not forked from its parent, and what was unpickled in it shall stay."""

    def _spec(self, session: Session) -> ProcessSpec:
        facts = cast(Any, self)  # the standard library's own attributes
        # A default name ends with the number; what runs in a worker begins to count anew, and is named after it.
        number = facts._identity[-1]
        group = self.name.removesuffix(f"-{number}").removesuffix(f":{number}")
        inside = bootstrap.current if len(facts._identity) == 1 else None
        resources = resources_of(facts._target, type(self).run, type(self))
        return ProcessSpec(
            group=f"{inside.name}/{group}" if inside else group,
            rank=number,
            entry=_ENTRY,
            codec=PROCESS,
            resources=resources or default_resources(session.settings),
            bounded=resources is not None,
            preload=self._preload,
            plain_output=True,
            limits_threads=resources is not None,
        )

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, for so many seconds at most.

        Raises:
            StartFailed: it could not be started.
        """
        try:
            super().join(timeout)
        except KeyboardInterrupt:
            if not _interrupts_are_passed_on():
                _interrupt_children()
            raise
        if self._running and not util.is_exiting():  # type: ignore[attr-defined]  # then nobody could do anything
            self._running.check_started()

    @property
    def exitcode(self) -> int | None:
        """What the process gave to `exit`, a negative signal number, or None while it has not ended.

        Raises:
            StartFailed: it could not be started.
        """
        code = super().exitcode
        if self._running:
            self._running.check_started()
        return code

    @property
    def ident(self) -> int | None:
        """The process id on its host, as soon as it is known; None before `start`.

        Raises:
            StartFailed: it could not be started.
        """
        if self._running and not cast(Any, self)._closed:
            return self._running.wait_for_pid()
        return super().ident

    pid = ident  # pyright: ignore[reportIncompatibleMethodOverride]  # the stubs take the two for different ones

    @property
    def failure(self) -> str | None:
        """How the process ended, in one line, unless that was well or it has not: cause, host, last output.

        Example:
            Process-1 on host n17 (pid 4711) was killed by SIGSEGV (segmentation fault) after 3.2 s; last output: ...
        """
        cast(Any, self)._check_closed()
        return self._running.failure if self._running else None

    @property
    def _running(self) -> Popen | None:
        return cast("Popen | None", cast(Any, self)._popen)


def cpu_count(session: Session | None = None) -> int:
    """How many CPUs there are for this program: on the engine's hosts, as far as they are up, else on this one.

    In a process of Ropewalk: how many it may use itself.
    """
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
    """Have Ctrl-C passed on to the children, which no terminal tells of it; whoever has a handler of his own keeps it.

    Programs that catch it anywhere, and then join their processes or exit, rely on these having heard of it.
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
    """Whether the children have heard of a Ctrl-C before us: a second one would end what they do about it."""
    return signal.getsignal(signal.SIGINT) in interrupts.telling_handlers


_hooked = False


def _hook_exit() -> None:
    """Have children ended at the end of this process: before its session, so only once that has opened."""
    global _hooked
    if not _hooked:
        _hooked = True
        before_closing(_end_children)


def _end_children() -> None:
    """As multiprocessing does it: daemonic children are ended, the others waited for."""
    children = _children()
    died_of_interrupt = getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")
    if died_of_interrupt and not _interrupts_are_passed_on():
        _interrupt_children()  # the terminal would have told them as well
    for child in children:
        if child.daemon:
            child.terminate()
    for child in children:
        with contextlib.suppress(StartFailed):  # that was said
            child.join()
