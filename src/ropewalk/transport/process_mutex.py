"""Mutexes and semaphores of the C library in memory that processes share.

    trylock ─▶ 0 │ EBUSY │ EOWNERDEAD: its owner died with it          robust, recursive, shared between processes
    wait_at ─▶ sem_timedwait ◀─ sem_post of any process                a wake-up; one that comes too early is not lost

Both are futexes: an operation that finds nobody waiting makes no system call. The functions that cannot block keep the
interpreter lock, because giving it up takes longer than they do. See pthread_mutexattr_setrobust(3), sem_wait(3).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import time
from typing import Any

MUTEX_BYTES = 64
"""Bytes for a mutex; the C libraries of Linux need 40 to 48."""
SEMAPHORE_BYTES = 32
"""Bytes of a semaphore."""
_SHARED, _ROBUST, _RECURSIVE = 1, 1, 1
OWNER_DIED = errno.EOWNERDEAD
"""What `trylock` returns to the next owner of a mutex whose owner died: it has the mutex, and calls `recover`."""
_BUSY = (errno.EBUSY, errno.ETIMEDOUT, errno.EINTR)
LOOK_S = 1.0
"""Seconds after which a sleeping thread looks around, at least."""
_NUM_LOOKS = 40
"""Attempts to get a mutex before sleeping, some microseconds: its owners have it for one, and sleeping takes fifty."""
_CHUNK_S = 0.1
"""The longest wait for a mutex, in seconds, between two moments at which signals are handled."""

_blocking = ctypes.CDLL(None, use_errno=True)
_immediate = ctypes.PyDLL(None)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_long))


def _prepared(library: ctypes.CDLL, name: str, *types: type) -> ctypes._NamedFuncPointer:  # pyright: ignore[reportPrivateUsage]
    function = getattr(library, name)
    function.argtypes = types
    function.restype = ctypes.c_int
    return function


trylock = _prepared(_immediate, "pthread_mutex_trylock", ctypes.c_void_p)
"""Acquire the mutex at an address if it is free or this thread has it: returns 0, EBUSY or EOWNERDEAD."""
unlock = _prepared(_immediate, "pthread_mutex_unlock", ctypes.c_void_p)
"""Release the mutex at an address; does nothing if this thread does not have it."""
post = _prepared(_immediate, "sem_post", ctypes.c_void_p)
"""Wake the thread that waits at the semaphore at an address, or is about to."""
_timedlock = _prepared(_blocking, "pthread_mutex_timedlock", ctypes.c_void_p, ctypes.c_void_p)
recover = _prepared(_immediate, "pthread_mutex_consistent", ctypes.c_void_p)
"""Make the mutex at an address usable, which this thread has just acquired after its owner's death."""
_timedwait = _prepared(_blocking, "sem_timedwait", ctypes.c_void_p, ctypes.c_void_p)


def make_mutex(address: int) -> None:
    """Make a mutex of zeroed memory.

    Args:
        address: of `MUTEX_BYTES` bytes.

    Raises:
        OSError: the C library or the kernel refuses it.
    """
    attributes = ctypes.create_string_buffer(64)
    for name, *arguments in (
        ("pthread_mutexattr_init",),
        ("pthread_mutexattr_setpshared", _SHARED),
        ("pthread_mutexattr_setrobust", _ROBUST),
        ("pthread_mutexattr_settype", _RECURSIVE),
    ):
        _check(name, getattr(_immediate, str(name))(attributes, *arguments))
    _check("pthread_mutex_init", _immediate.pthread_mutex_init(ctypes.c_void_p(address), attributes))


def _check(name: object, problem: int) -> None:
    if problem:
        raise OSError(problem, f"{name}: {os.strerror(problem)}")


def make_semaphore(address: int) -> None:
    """Make a semaphore of `SEMAPHORE_BYTES` zeroed bytes at an address."""
    _immediate.sem_init(ctypes.c_void_p(address), _SHARED, 0)


def lock(address: int) -> None:
    """Acquire the mutex at an address; what it guards must be consistent at each step, because owners may die.

    A thread may acquire it again, as a handler of a signal does that comes while its thread has it.
    """
    problem = trylock(address)
    if problem:
        lock_despite(problem, address)


def lock_despite(problem: int, address: int) -> None:
    """Acquire the mutex at an address, for which `trylock` has returned a problem."""
    looks = _NUM_LOOKS
    while problem:
        if problem == OWNER_DIED:
            recover(address)
            return
        if problem not in _BUSY:
            raise OSError(problem, f"a mutex that processes share: {os.strerror(problem)}")
        looks -= 1
        problem = trylock(address) if looks > 0 else _timedlock(address, ctypes.byref(_due(_CHUNK_S)))


def wait_at(address: int, timeout_s: float) -> None:
    """Wait until a semaphore is posted, a signal comes or the time is over; the caller finds out which.

    Args:
        address: of the semaphore.
        timeout_s: seconds to wait at most.
    """
    _timedwait(address, ctypes.byref(_due(timeout_s)))


class SharedAlarm:
    """The time at which sleeping threads of a process look around.

    It is used many times: making one takes a microsecond, as long as all the rest of falling asleep.
    """

    def __init__(self) -> None:
        self._fresh_until = 0.0
        self._time: Any = None

    def sleep_at(self, address: int) -> None:
        """Wait until a semaphore is posted or a signal comes, one to two seconds at most."""
        now = time.monotonic()
        if now > self._fresh_until:
            self._time = ctypes.byref(_due(2 * LOOK_S))
            self._fresh_until = now + LOOK_S
        _timedwait(address, self._time)


def _due(timeout_s: float) -> _Timespec:
    seconds, nanoseconds = divmod(time.time_ns() + int(timeout_s * 1e9), 1_000_000_000)
    return _Timespec(seconds, nanoseconds)


@functools.cache
def are_mutexes_possible() -> bool:
    """Whether this process can make mutexes that survive the death of their owner."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        start = ctypes.c_char.from_buffer(memory)
        try:
            make_mutex(ctypes.addressof(start))
        except (OSError, AttributeError):  # another C library
            return False
        finally:
            del start
    return True


def layout() -> int:
    """Return a number that is the same in processes whose mutexes have the same layout: those of one C library."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        name = "another"
    return int.from_bytes(f"{name} {ctypes.sizeof(ctypes.c_void_p)}".encode()[-7:].rjust(7), "little")


__all__ = [
    "LOOK_S",
    "MUTEX_BYTES",
    "OWNER_DIED",
    "SEMAPHORE_BYTES",
    "SharedAlarm",
    "are_mutexes_possible",
    "layout",
    "lock",
    "lock_despite",
    "make_mutex",
    "make_semaphore",
    "post",
    "recover",
    "trylock",
    "unlock",
    "wait_at",
]
