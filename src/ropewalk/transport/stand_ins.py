"""Stand-ins in another process for globals of `__main__` that belong to their own process alone.

A function that takes a lock, writes to a file or uses a thread pool works when multiprocessing forks (the child has a
copy) and when it spawns (the child makes its own, by running the script again). Here the child gets one of its own,
made like this:

    Lock RLock                           not locked
    Condition Event Semaphore Barrier    like new; an event is set if it is set here, a semaphore counts from here
    local ContextVar                     without the values that threads have set
    Queue LifoQueue PriorityQueue        empty
    ThreadPoolExecutor                   with as many threads and the same initializer
    a file that was opened by its path   opened again: for reading at the same place, for writing at its end

That applies to globals, and to objects inside of them, wherever the code of a function or class refers to them; not to
arguments, where it would hide a mistake. Each object has one stand-in in a process, whichever functions bring it, and
however often: so a lock in two places is one lock there, too.
"""

from __future__ import annotations

import contextvars
import io
import itertools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast

_standing: dict[str, Any] = {}
"""The stand-ins that this process has made, by key. They are kept: the next function may refer to them again."""
_keys: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Keys of this process's own objects, which are resolved to themselves when they are sent back."""
_own: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_lasting: dict[int, tuple[Any, str]] = {}
"""The same for objects without weak references, which are kept alive: modules make such objects once."""
_lock = threading.Lock()
_numbers = itertools.count(1)
_process = ""


def reduce_stand_in(obj: object) -> Any:
    """Return the reduction of an object for which another process has a stand-in; NotImplemented for others.

    Raises:
        TypeError: the object cannot be made again, such as a file without a path.
    """
    kind: Any = type(obj)
    reduce = _BY_TYPE.get(kind)
    if reduce is None and (kind.__module__, kind.__name__) == _THREAD_POOL:
        reduce = _thread_pool_of
    if reduce is None:
        if isinstance(obj, threading.Thread):  # a copy would look like a thread that is running
            raise TypeError(f"cannot pickle {kind.__name__!r} object: a thread runs in its own process")
        return NotImplemented
    reduced = reduce(obj)
    return reduced if isinstance(reduced, _Name) else (stand_in, (_key_of(obj), *reduced))


def stand_in(key: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return the stand-in of this process for an object of another; made at its first use. Pickles call this."""
    with _lock:
        own = _own.get(key) or next((obj for obj, known in _lasting.values() if known == key), None)
        if own is not None:
            return own
        if key not in _standing:
            _standing[key] = made = make(*arguments)
            _note(made, key)  # it may be sent on, and sent back
        return _standing[key]


def _key_of(obj: Any) -> str:
    with _lock:
        known = _lasting.get(id(obj), (None, ""))[1] or _get(obj)
        return known or _note(obj, f"{_process_key()}-{next(_numbers)}")


def _get(obj: Any) -> str:
    try:
        return _keys.get(obj, "")
    except TypeError:
        return ""


def _note(obj: Any, key: str) -> str:
    try:
        _keys[obj] = key
        _own[key] = obj
    except TypeError:  # not weakly referenceable
        _lasting[id(obj)] = obj, key
    return key


def _process_key() -> str:
    global _process
    _process = _process or os.urandom(8).hex()
    return _process


def _forget() -> None:
    """Reset in a forked child, whose objects are its own. Another thread of the parent may have held the lock."""
    global _process, _lock
    _process = ""
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


class _Name(tuple[Any, ...]):
    """A reduction to an object that the other process has in any case."""


# How each type is made again: the arguments of `stand_in` after the key.


def _lock_of(_: Any) -> tuple[Any, ...]:
    return (threading.Lock,)


def _rlock_of(_: Any) -> tuple[Any, ...]:
    return (threading.RLock,)


def _condition_of(condition: Any) -> tuple[Any, ...]:
    return threading.Condition, condition._lock


def _event_of(event: Any) -> tuple[Any, ...]:
    return make_event, event.is_set()


def _semaphore_of(semaphore: Any) -> tuple[Any, ...]:
    return threading.Semaphore, semaphore._value


def _bounded_semaphore_of(semaphore: Any) -> tuple[Any, ...]:
    return make_bounded_semaphore, semaphore._initial_value, semaphore._value


def _barrier_of(barrier: Any) -> tuple[Any, ...]:
    return threading.Barrier, barrier.parties, barrier._action, barrier._timeout


def _local_of(_: Any) -> tuple[Any, ...]:
    return (threading.local,)


def _context_variable_of(variable: Any) -> tuple[Any, ...]:
    try:
        return make_context_variable, variable.name, contextvars.Context().run(variable.get)
    except LookupError:
        return make_context_variable, variable.name


def _queue_of(waiting: Any) -> tuple[Any, ...]:
    return cast(Any, type(waiting)), waiting.maxsize


def _simple_queue_of(_: Any) -> tuple[Any, ...]:
    return (queue.SimpleQueue,)


def _thread_pool_of(executor: Any) -> tuple[Any, ...]:
    initializer, initargs = getattr(executor, "_initializer", None), getattr(executor, "_initargs", ())
    return make_thread_pool, executor._max_workers, executor._thread_name_prefix, initializer, initargs


def _file_of(file: Any) -> Any:
    for name in ("stdin", "stdout", "stderr"):
        if file is getattr(sys, name) or file is getattr(sys, f"__{name}__"):
            return _Name((getattr, (sys, name)))
    if file.closed:
        return (make_closed_file,)
    path, mode = file.name, getattr(file, "mode", "")
    if not isinstance(path, str | bytes) or not isinstance(mode, str) or not mode:
        raise TypeError(f"cannot pickle {type(file).__name__!r} object that was not opened by its path")
    path = os.path.abspath(os.fsdecode(path))
    try:
        is_there = os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except OSError:
        is_there = False
    if not is_there:
        raise TypeError(f"cannot pickle {type(file).__name__!r} object: its file is not at {path} any more")
    facts: dict[str, Any] = {}
    if isinstance(file, io.TextIOWrapper):
        facts = {"encoding": file.encoding, "errors": file.errors}
    else:
        mode = f"{mode.replace('b', '')}b"
        facts = {"buffering": 0} if isinstance(file, io.FileIO) else {}
    return open_again, path, mode, _place_in(file), facts


def _place_in(file: Any) -> int | None:
    try:
        return file.tell() if file.readable() and file.seekable() else None
    except OSError:  # in the middle of `for line in file`
        return None


_THREAD_POOL = ("concurrent.futures.thread", "ThreadPoolExecutor")
"""By name, because importing it would cost programs that have none."""
_BY_TYPE: dict[type, Callable[[Any], Any]] = {
    type(threading.Lock()): _lock_of,
    type(threading.RLock()): _rlock_of,
    threading.Condition: _condition_of,
    threading.Event: _event_of,
    threading.Semaphore: _semaphore_of,
    threading.BoundedSemaphore: _bounded_semaphore_of,
    threading.Barrier: _barrier_of,
    threading.local: _local_of,
    contextvars.ContextVar: _context_variable_of,
    queue.Queue: _queue_of,
    queue.LifoQueue: _queue_of,
    queue.PriorityQueue: _queue_of,
    queue.SimpleQueue: _simple_queue_of,
    io.TextIOWrapper: _file_of,
    io.BufferedReader: _file_of,
    io.BufferedWriter: _file_of,
    io.BufferedRandom: _file_of,
    io.FileIO: _file_of,
}


# Functions that pickles call. Their names are part of pickles: renaming one is a change of protocol.


def make_event(is_set: bool) -> threading.Event:
    """Make an event."""
    event = threading.Event()
    if is_set:
        event.set()
    return event


def make_bounded_semaphore(bound: int, value: int) -> threading.BoundedSemaphore:
    """Make a semaphore from which some were taken."""
    semaphore: Any = threading.BoundedSemaphore(bound)
    semaphore._value = value
    return semaphore


def make_context_variable(name: str, *default: Any) -> contextvars.ContextVar[Any]:
    """Make a context variable."""
    return contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)


def make_thread_pool(
    max_workers: int, prefix: str, initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]
) -> Any:
    """Make a thread pool."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max_workers, prefix, initializer, initargs)


def make_closed_file() -> io.StringIO:
    """Make a file that was closed."""
    file = io.StringIO()
    file.close()
    return file


def open_again(path: str, mode: str, place: int | None, facts: dict[str, Any]) -> Any:
    """Open a file that another process has open, without emptying it.

    Raises:
        OSError: it cannot be opened here, perhaps because this is another host.
    """
    file = open(path, mode.replace("w", "a").replace("x", "a"), **facts)  # noqa: SIM115 - the process has it
    if place is not None and "r" in mode:
        file.seek(place)
    return file


__all__ = ["reduce_stand_in", "stand_in"]
