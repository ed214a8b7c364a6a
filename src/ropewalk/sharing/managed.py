"""The queues, locks and conditions of managers: those of a depot, with the signatures of `queue` and `threading`.

In the standard library, a manager's lock is a `threading.Lock` behind a proxy. So its `acquire` takes `blocking`, and
too many releases raise RuntimeError, while `multiprocessing.Lock` has `block` and ValueError.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ropewalk.sharing import locks, proxies, queues, shared_object, synchronize


class _Managed(shared_object.SharedObject):
    """A handle that supports being pickled in the process of its own manager, and is shown as proxies are."""

    def __repr__(self) -> str:
        name = type(self).__name__.removeprefix("Managed")  # as multiprocessing calls its proxies
        return f"<{name}Proxy object, typeid {name!r} at {id(self):#x}>"

    def __str__(self) -> str:
        return super().__repr__()

    def __reduce__(self) -> Any:
        reference = self._reference
        if proxies.here is None or proxies.here.address != reference.address:
            return super().__reduce__()
        # The handle is counted for the caller, and not for this process, which would have to connect to itself.
        reference = replace(reference, ticket=proxies.here.lend(reference.target))
        return shared_object._rebuild, (type(self), reference, self._facts())  # pyright: ignore[reportPrivateUsage]


class ManagedQueue(_Managed, queues.JoinableQueue):
    """A queue of a manager; like `queue.Queue`, it counts processed items."""


class ManagedLock(_Managed, locks.Lock):
    """A lock of a manager."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Acquire the lock, waiting at most `timeout` seconds; returns whether it was acquired."""
        return super().acquire(blocking, _seconds(timeout))

    def release(self) -> None:
        """Release the lock, for the next in the queue.

        Raises:
            RuntimeError: the lock is free, or it is recursive and another thread owns it.
        """
        try:
            super().release()
        except (ValueError, AssertionError) as error:
            raise RuntimeError(f"release unlocked lock: {error}") from None


class ManagedRLock(ManagedLock, locks.RLock):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A recursive lock of a manager."""


class ManagedSemaphore(_Managed, locks.Semaphore):
    """A semaphore of a manager."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Decrement the count, waiting at most `timeout` seconds until it is positive; returns whether it did."""
        return super().acquire(blocking, _seconds(timeout))


class ManagedBoundedSemaphore(ManagedSemaphore, locks.BoundedSemaphore):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A semaphore of a manager that cannot be released more often than acquired."""


class ManagedCondition(_Managed, synchronize.Condition):
    """A condition of a manager."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Acquire its lock; returns whether it was acquired."""
        return super().acquire(blocking, _seconds(timeout))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as in `multiprocessing`, but raise RuntimeError without the lock."""
        try:
            return super().wait(timeout)
        except AssertionError:
            raise RuntimeError("cannot wait on un-acquired lock") from None

    def notify(self, n: int = 1) -> None:
        """Notify as in `multiprocessing`, but raise RuntimeError without the lock."""
        try:
            super().notify(n)
        except AssertionError:
            raise RuntimeError("cannot notify on un-acquired lock") from None

    def notify_all(self) -> None:
        """Notify all as in `multiprocessing`, but raise RuntimeError without the lock."""
        try:
            super().notify_all()
        except AssertionError:
            raise RuntimeError("cannot notify on un-acquired lock") from None


class ManagedEvent(_Managed, synchronize.Event):
    """An event of a manager."""


class ManagedBarrier(_Managed, synchronize.Barrier):
    """A barrier of a manager."""


def _seconds(timeout: float | None) -> float | None:
    """Convert a timeout of `threading`: -1 means for ever."""
    return None if timeout == -1 else timeout


__all__ = [
    "ManagedBarrier",
    "ManagedBoundedSemaphore",
    "ManagedCondition",
    "ManagedEvent",
    "ManagedLock",
    "ManagedQueue",
    "ManagedRLock",
    "ManagedSemaphore",
]
