"""The lock of a value or array, between the processes of one host, in the memory that they share.

    sheet   │ value │ pid of its owner │ ...           the record lock is on the pid; the next value has its own
                         ▲
    thread ─▶ mutex of this process ─▶ record lock of the kernel (fcntl, F_OFD_SETLKW) ─▶ owned: two system calls, ~1 µs

A record lock of an open file description belongs to every process that has the description. So each process opens one
for each memory file, a forked child immediately another one, and threads first take a mutex. The kernel releases the
record lock at the end of its process, however that ends, while the pid stays: the next owner logs which process died.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import logging
import os
import threading
import time
from multiprocessing.process import current_process
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ropewalk.sharing.membership import on_fork
from ropewalk.transport.kernel import FLOCK, RECORD_LOCKS, refusal

if TYPE_CHECKING:
    from ropewalk.sharing.memory import Memory
    from ropewalk.sharing.shared_object import ObjectLocation

HOST_LOCK_BYTES = 8
"""Bytes of a lock in the memory, and their alignment."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.0001, 0.005
"""Seconds between attempts of an acquire with a timeout: the first pause, and the longest."""

logger = logging.getLogger(__name__)


class HostLock:
    """A lock that its owner, a thread, may acquire again, and no other thread may release. See `host_lock`.

    A process has one object for each lock, which goes with its last value there. If its owner dies, or has no value
    with it any more, it becomes free, and its next owner logs that.

    Args:
        memory: the memory that it is in.
        at: its offset there, in bytes.
    """

    def __init__(self, memory: Memory, at: int) -> None:
        self._memory = memory
        self._at = at
        self._file = _file_of(memory)
        self._owner = ctypes.c_int.from_buffer(memory.mapping, at)
        self._mine = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        self._free = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, at, 1, 0)
        self._start_free()

    def _start_free(self) -> None:
        self._mutex = threading.RLock()
        self._depth = 0
        """How many times the owner of the mutex has acquired it."""
        self._is_ours = False
        """Whether it has the record lock as well."""

    def __del__(self) -> None:
        if self.__dict__.get("_is_ours"):
            self._unlock()

    def __reduce__(self) -> Any:
        return host_lock, (self._memory, self._at)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire it, waiting if necessary.

        Args:
            block: False: do not wait.
            timeout: seconds to wait at most; negative values count as zero; None waits for ever.

        Returns:
            Whether it was acquired.
        """
        if block and timeout is None:
            return self._acquire(None)
        return self._acquire(max(0.0, float(timeout)) if block and timeout is not None else 0.0)

    def _acquire(self, limit_s: float | None) -> bool:
        deadline = time.monotonic() + limit_s if limit_s else 0.0
        try:
            if not self._mutex.acquire(timeout=-1 if limit_s is None else min(limit_s, threading.TIMEOUT_MAX)):
                return False
        except BaseException:  # Ctrl-C, perhaps at the moment when it was acquired
            if not self._depth and self._owns_mutex():
                self._mutex.release()
            raise
        self._depth += 1
        if self._is_ours:
            return True
        try:
            if limit_s is None:
                fcntl.fcntl(self._file.fd, fcntl.F_OFD_SETLKW, self._mine)
            elif not self._lock_until(deadline):
                self._leave()
                return False
            before, self._owner.value, self._is_ours = self._owner.value, _pid, True
            if before:
                label = self._memory._reference.label  # pyright: ignore[reportPrivateUsage]
                logger.warning(
                    "the lock at %d in %s was held by pid %d, which is gone; %s", self._at, label, before, _SO
                )
        except BaseException:
            self._leave()
            raise
        return True

    def _lock_until(self, deadline: float) -> bool:
        """Poll the lock until the deadline, at least once, because the kernel's wait has no timeout."""
        pause_s = _FIRST_PAUSE_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.fcntl(self._file.fd, fcntl.F_OFD_SETLK, self._mine)
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def release(self) -> None:
        """Undo one `acquire`; after the last one, another thread or process may acquire it.

        Raises:
            AssertionError: this thread does not own it.
        """
        if not self._owns_mutex():
            raise AssertionError("attempt to release recursive lock not owned by thread")
        self._leave()

    def _leave(self) -> None:
        self._depth -= 1
        try:
            if not self._depth:
                if self._is_ours:
                    self._owner.value, self._is_ours = 0, False
                self._unlock()
        finally:
            self._mutex.release()

    def _unlock(self) -> None:
        fcntl.fcntl(self._file.fd, fcntl.F_OFD_SETLK, self._free)

    def _owns_mutex(self) -> bool:
        return self._mutex._is_owned()  # pyright: ignore  # as threading.Condition asks it

    def __enter__(self) -> bool:
        return self._acquire(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def locked(self) -> bool:
        """Whether it has an owner at this moment."""
        return self._is_ours or self._is_theirs()

    def holder(self) -> str:
        """Return the description of its present owner; "" if there is none."""
        return f"pid {self._owner.value}" if self.locked() else ""

    def _is_theirs(self) -> bool:
        """Whether another process owns it."""
        kind: int = FLOCK.unpack(fcntl.fcntl(self._file.fd, fcntl.F_OFD_GETLK, self._mine)[: FLOCK.size])[0]
        return kind != fcntl.F_UNLCK

    def __repr__(self) -> str:
        who, depth = "None", "0"
        if self._is_ours and self._owns_mutex():
            thread = threading.current_thread().name
            who, depth = current_process().name + ("" if thread == "MainThread" else f"|{thread}"), str(self._depth)
        elif self.locked():
            who, depth = ("SomeOtherThread" if self._is_ours else "SomeOtherProcess"), "nonzero"
        return f"<{type(self).__name__}({who}, {depth})>"


_SO = "what it guards may be half done"


def host_lock(memory: Memory, at: int) -> HostLock:
    """Return the lock at a place: in one process always the same object.

    Args:
        memory: memory of this host.
        at: the offset of `HOST_LOCK_BYTES` bytes that began as zeros and are for this lock; a multiple of that number.

    Raises:
        PeerLost: the depot that holds the memory is gone, and this process had no lock in it before.
    """
    with _making:
        key = _reference(memory), at
        lock = _locks.get(key)
        if lock is None:
            lock = _locks[key] = HostLock(memory, at)
        return lock


@functools.cache
def are_host_locks_possible() -> bool:
    """Whether the kernel has locks of open file descriptions, which some sandboxes lack."""
    return refusal(RECORD_LOCKS) is None


# The state of this process


class _LockFile:
    """A memory file, opened once by this process for all locks in it."""

    def __init__(self, memory: Memory) -> None:
        self.fd = memory.open()

    def __del__(self) -> None:
        if "fd" in self.__dict__:
            os.close(self.fd)

    def open_again(self) -> None:
        """Open a new description under the same number, in a forked child, and close the parent's."""
        inherited = self.fd
        try:
            self.fd = os.open(f"/proc/self/fd/{inherited}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no descriptor is left: acquiring then raises, which is better than sharing the parent's locks
            del self.fd
        os.close(inherited)


_files: WeakValueDictionary[ObjectLocation, _LockFile] = WeakValueDictionary()
_locks: WeakValueDictionary[tuple[ObjectLocation, int], HostLock] = WeakValueDictionary()
_making = threading.Lock()
_pid = os.getpid()


def _file_of(memory: Memory) -> _LockFile:
    file = _files.get(_reference(memory))
    if file is None:
        file = _files[_reference(memory)] = _LockFile(memory)
    return file


def _reference(memory: Memory) -> ObjectLocation:
    return memory._reference  # pyright: ignore[reportPrivateUsage]


def _own_nothing() -> None:
    """Own no locks in a forked child: its parent still owns them."""
    global _making, _pid
    _making, _pid = threading.Lock(), os.getpid()
    for lock in list(_locks.values()):
        lock._start_free()  # pyright: ignore[reportPrivateUsage]
    for file in list(_files.values()):
        file.open_again()


on_fork.append(_own_nothing)


__all__ = ["HOST_LOCK_BYTES", "HostLock", "are_host_locks_possible", "host_lock"]
