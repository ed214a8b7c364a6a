"""Contexts: all names of `multiprocessing`, bound to one engine.

    mp = ropewalk.get_context(engine="slurm")
    queue, process = mp.Queue(), mp.Process(target=work, args=(queue,))

The names at the top level of `ropewalk` belong to the default context, which uses the engine of the settings.
"""

# Libraries check that a context is an instance of multiprocessing's class, but the objects have Ropewalk's classes.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from ropewalk.compat.executor import Executor
from ropewalk.compat.process import Process, ProcessSource, active_children, cpu_count, current_process, parent_process
from ropewalk.pool.pool import Pool
from ropewalk.processes.messages import IF_THERE
from ropewalk.processes.session import Session
from ropewalk.settings import current as current_settings
from ropewalk.sharing.connections import Connection, Pipe
from ropewalk.sharing.managers import Manager, SyncManager
from ropewalk.sharing.memory import Array, RawArray, RawValue, Value
from ropewalk.sharing.queues import JoinableQueue, Queue, SimpleQueue
from ropewalk.sharing.synchronize import Barrier, BoundedSemaphore, Condition, Event, Lock, RLock, Semaphore

if TYPE_CHECKING:
    import logging

START_METHODS = ("spawn", "forkserver")
"""The start methods of `multiprocessing` whose promise Ropewalk keeps: a new process that inherits nothing."""


_Process = Process  # inside the class, its attribute of the same name hides it


class Context(multiprocessing.context.BaseContext):
    """Everything that `multiprocessing` has, for the processes of one engine.

    Args:
        engine: name of the engine that runs the processes; defaults to the engine of the settings.
        session: a session to use instead of an engine.
        hosts: number of hosts; defaults to as many as the processes need.
        engine_options: options of the engine, in addition to those in the settings.
        advertise: the IP address at which other hosts reach this one, if it has several.
        method: the value that `get_start_method` returns; it has no other effect.

    Raises:
        SettingsError: a setting has an invalid value.
    """

    AuthenticationError = multiprocessing.AuthenticationError
    BufferTooShort = multiprocessing.BufferTooShort
    ProcessError = multiprocessing.ProcessError
    TimeoutError = multiprocessing.TimeoutError
    Process: type[Process] = _Process
    active_children: staticmethod[[], list[BaseProcess]] = staticmethod(active_children)
    current_process: staticmethod[[], BaseProcess] = staticmethod(current_process)
    parent_process: staticmethod[[], BaseProcess | None] = staticmethod(parent_process)
    freeze_support: staticmethod[[], None] = staticmethod(multiprocessing.freeze_support)
    allow_connection_pickling: staticmethod[[], None] = staticmethod(multiprocessing.allow_connection_pickling)
    reducer: Any = multiprocessing.reducer

    def __init__(
        self,
        engine: str | None = None,
        *,
        session: Session | None = None,
        hosts: int | None = None,
        engine_options: Mapping[str, object] | None = None,
        advertise: str | None = None,
        method: str | None = None,
    ) -> None:
        facts = {"engine": engine, "hosts": hosts, "engine_options": engine_options, "advertise": advertise}
        settings = current_settings(**facts) if any(value is not None for value in facts.values()) else None
        self._source = ProcessSource(settings, session)
        self._method = method
        self.engine: str | None = session.settings.engine if session else settings.engine if settings else None
        """Name of the engine; None means the engine of the settings."""
        if type(self).Process is _Process:  # a subclass may have set its own class of processes
            self.Process = type("Process", (_Process,), {"_source": self._source, "__module__": _Process.__module__})

    def __repr__(self) -> str:
        return f"<ropewalk context, engine={self.engine or current_settings().engine!r}>"

    @property
    def session(self) -> Session:
        """The session that currently holds the context's processes and objects."""
        return self._source.session()

    def Pool(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        **options: Any,
    ) -> Pool:
        """See `ropewalk.Pool`."""
        options.setdefault("session", self.session)
        return Pool(processes, initializer, initargs, maxtasksperchild, **options)

    def Executor(self, max_workers: int | None = None, **options: Any) -> Executor:
        """See `ropewalk.Executor`."""
        options.setdefault("session", self.session)
        return Executor(max_workers, **options)

    def Queue(self, maxsize: int = 0) -> Queue:
        """See `ropewalk.Queue`."""
        return Queue(maxsize, session=self.session)

    def JoinableQueue(self, maxsize: int = 0) -> JoinableQueue:
        """See `ropewalk.JoinableQueue`."""
        return JoinableQueue(maxsize, session=self.session)

    def SimpleQueue(self) -> SimpleQueue:
        """See `ropewalk.SimpleQueue`."""
        return SimpleQueue(session=self.session)

    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:
        """See `ropewalk.Pipe`."""
        return Pipe(duplex, session=self.session)

    def Manager(self) -> SyncManager:
        """See `ropewalk.Manager`."""
        return Manager(session=self.session)

    def Lock(self) -> Lock:
        """See `ropewalk.Lock`."""
        return Lock(session=self.session)

    def RLock(self) -> RLock:
        """See `ropewalk.RLock`."""
        return RLock(session=self.session)

    def Semaphore(self, value: int = 1) -> Semaphore:
        """See `ropewalk.Semaphore`."""
        return Semaphore(value, session=self.session)

    def BoundedSemaphore(self, value: int = 1) -> BoundedSemaphore:
        """See `ropewalk.BoundedSemaphore`."""
        return BoundedSemaphore(value, session=self.session)

    def Condition(self, lock: Lock | None = None) -> Condition:
        """See `ropewalk.Condition`."""
        return Condition(lock, session=self.session)

    def Event(self) -> Event:
        """See `ropewalk.Event`."""
        return Event(session=self.session)

    def Barrier(
        self, parties: int, action: Callable[[], object] | None = None, timeout: float | None = None
    ) -> Barrier:
        """See `ropewalk.Barrier`."""
        return Barrier(parties, action, timeout, session=self.session)

    def Value(self, typecode_or_type: Any, *args: Any, lock: Any = True) -> Any:
        """See `ropewalk.Value`."""
        return Value(typecode_or_type, *args, lock=lock, session=self.session)

    def Array(self, typecode_or_type: Any, size_or_initializer: Any, *, lock: Any = True) -> Any:
        """See `ropewalk.Array`."""
        return Array(typecode_or_type, size_or_initializer, lock=lock, session=self.session)

    def RawValue(self, typecode_or_type: Any, *args: Any) -> Any:
        """See `ropewalk.RawValue`."""
        return RawValue(typecode_or_type, *args, session=self.session)

    def RawArray(self, typecode_or_type: Any, size_or_initializer: Any) -> Any:
        """See `ropewalk.RawArray`."""
        return RawArray(typecode_or_type, size_or_initializer, session=self.session)

    def cpu_count(self) -> int:
        """See `ropewalk.cpu_count`."""
        return cpu_count(self.session)

    def get_context(self, method: str | None = None) -> Context:
        """Return this context, for each accepted start method; see `ropewalk.get_context`."""
        _check_method(method)
        return _by_method[method] if method and self is _default else self

    def get_start_method(self, allow_none: bool = False) -> str:
        """See `ropewalk.get_start_method`."""
        return self._method or get_start_method(allow_none)

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """Raise ValueError, as the contexts of `multiprocessing` do: the start method of a context is fixed.

        Raises:
            ValueError: always.
        """
        raise ValueError("cannot set start method of concrete context")

    def get_all_start_methods(self) -> list[str]:
        """See `ropewalk.get_all_start_methods`."""
        return get_all_start_methods()

    def set_executable(self, executable: str | bytes | os.PathLike[str]) -> None:
        """See `ropewalk.set_executable`."""
        set_executable(executable)

    def set_forkserver_preload(self, module_names: Sequence[str]) -> None:
        """See `ropewalk.set_forkserver_preload`."""
        set_forkserver_preload(module_names)

    def get_logger(self) -> logging.Logger:
        """Return the logger of `multiprocessing`."""
        return multiprocessing.get_logger()

    def log_to_stderr(self, level: int | str | None = None) -> logging.Logger:
        """See `multiprocessing.log_to_stderr`."""
        return multiprocessing.log_to_stderr(level)


BaseContext = Context
"""The name of the context class in `multiprocessing`."""

_default = Context()
_by_method = {method: Context(method=method) for method in START_METHODS}
_method: str | None = None


def get_context(
    method: str | None = None,
    *,
    engine: str | None = None,
    session: Session | None = None,
    hosts: int | None = None,
    engine_options: Mapping[str, object] | None = None,
    advertise: str | None = None,
) -> Context:
    """Return a context: all names of `multiprocessing`, bound to one engine.

    Args:
        method: a start method, for programs that were written for `multiprocessing`: "spawn" and "forkserver" are
            accepted and mean the same here.
        engine: name of the engine that runs the processes; defaults to the engine of the settings.
        session: a session to use instead of an engine.
        hosts: number of hosts; defaults to as many as the processes need.
        engine_options: options of the engine, in addition to those in the settings.
        advertise: the IP address at which other hosts reach this one, if it has several.

    Raises:
        ValueError: the start method is "fork", or unknown.
        SettingsError: a setting has an invalid value.

    Example:
        >>> ropewalk.get_context(engine="local").Process
        <class 'ropewalk.compat.process.Process'>
    """
    _check_method(method)
    if engine is session is hosts is engine_options is advertise is None:
        return _default.get_context(method)
    return Context(engine, session=session, hosts=hosts, engine_options=engine_options, advertise=advertise)


def get_start_method(allow_none: bool = False) -> str:
    """Return the method that `set_start_method` has set, or "spawn": processes of Ropewalk inherit nothing.

    Args:
        allow_none: accepted for compatibility with `multiprocessing`.
    """
    return _method or START_METHODS[0]


def set_start_method(method: str | None, force: bool = False) -> None:
    """Accept "spawn" or "forkserver"; the choice has no effect, because Ropewalk's processes behave the same for both.

    Args:
        method: the start method; None resets it.
        force: whether to replace a method that was set before.

    Raises:
        ValueError: `method` is "fork", or unknown.
        RuntimeError: a method was set before, and `force` is false.
    """
    global _method
    _check_method(method)
    if _method is not None and not force:
        raise RuntimeError("context has already been set")
    _method = method


def get_all_start_methods() -> list[str]:
    """Return the start methods of `multiprocessing` that are accepted here."""
    return list(START_METHODS)


def set_executable(executable: str | bytes | os.PathLike[str]) -> None:
    """Accept the interpreter that runs this program; Ropewalk's processes on this host always use it.

    Args:
        executable: path of the interpreter.

    Raises:
        ValueError: `executable` is another interpreter.
    """
    if os.fsdecode(executable) != sys.executable:
        raise ValueError(
            f"processes run the interpreter of this program ({sys.executable}), not {os.fsdecode(executable)!r}; "
            "for other hosts set the engine's option `python`"
        )


def set_forkserver_preload(module_names: Sequence[str]) -> None:
    """Have the fork server import modules once, instead of every process that `Process` starts from now on.

    Missing modules are skipped, as in `multiprocessing`. Numerical libraries then start only one thread, and with some
    of them (NumPy, but not torch) the processes keep that single thread.

    Args:
        module_names: names of the modules.

    Raises:
        TypeError: `module_names` is not a list of names.
    """
    if isinstance(module_names, str) or not all(isinstance(name, str) for name in module_names):
        raise TypeError(f"module_names must be a list of strings, names of modules, not {module_names!r}")
    names = tuple(f"{name}{IF_THERE}" for name in module_names if name != "__main__")
    Process._preload = names  # pyright: ignore[reportPrivateUsage]


def _check_method(method: str | None) -> None:
    if method == "fork":
        raise ValueError(
            "Ropewalk does not fork: its processes may run on other hosts, and inherit nothing; pass what they need as "
            f"arguments, and ask for {' or '.join(map(repr, START_METHODS))}, or for no start method at all"
        )
    if method is not None and method not in START_METHODS:
        raise ValueError(f"cannot find context for {method!r}; there are {', '.join(START_METHODS)}")


__all__ = [
    "BaseContext",
    "Context",
    "get_all_start_methods",
    "get_context",
    "get_start_method",
    "set_executable",
    "set_forkserver_preload",
    "set_start_method",
]
