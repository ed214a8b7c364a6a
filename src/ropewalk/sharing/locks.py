"""Locks and semaphores between any processes of a run, as in `multiprocessing`.

    with lock: ─ acquire ─▶ state: one owner, the others queued ─ release ─▶ the next
                              ├ of this host: in memory that its processes share   (host_calls.py)
                              └ of another one: in its depot

Waiting ends if the waiting process dies. Unlike in `multiprocessing`, acquirers are served in turn, and a lock whose
owner dies becomes free; the next owner logs a warning about that.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from multiprocessing.process import current_process
from types import TracebackType
from typing import Any, Self

from ropewalk.errors import PeerLost
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import session_of
from ropewalk.sharing.depot_client import depot_client_of
from ropewalk.sharing.host_calls import BerthsTaken, HostCalls, calls_to
from ropewalk.sharing.membership import member_of_run
from ropewalk.sharing.resting_calls import acquire_lock, add, release_lock
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject, create, limited
from ropewalk.user_frames import shortened, user_frames_only

logger = logging.getLogger(__name__)


class Synchronizer(SharedObject):
    """The common base of locks, semaphores, conditions, events and barriers."""

    @classmethod
    def at(cls, reference: ObjectLocation, **facts: Any) -> Self:
        """Return a handle of a state that this process has just made elsewhere than in its depot, such as in a manager.

        Args:
            reference: the location of the state.
            facts: the attributes that are sent with a handle; see `_facts` of the class.
        """
        made = cls.__new__(cls)
        SharedObject.__init__(made, reference, is_new=True)
        made.__dict__.update(facts)
        return made

    _calls: HostCalls | None = None
    """Its calls in memory that this host shares, if it is of this host."""

    def _ask(self, method: str, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        calls = self._calls_here()
        if calls is not None:
            with contextlib.suppress(BerthsTaken):
                return calls.ask(method, args, limited(timeout), self._gone)
        return super()._ask(method, *args, timeout=timeout, **options)

    def _record_owner(self) -> int:
        """Return the number of the object whose record its state is in."""
        return self._reference.target

    def _ask_depot(self, method: str) -> Any:
        """Call a method that needs to know names of processes."""
        return super()._ask(method)

    def _calls_here(self) -> HostCalls | None:
        """Return the calls to it in shared memory; None if its depot has to make them."""
        known = self._calls
        if known and not known.connection.closed:
            return known
        self._calls = None
        reference = self._reference
        if not reference.slot:
            return None
        connection = self._connection()
        member = member_of_run(reference.run_id)
        client = depot_client_of(member, reference.address, connection)
        if client:
            ring = functools.partial(member.tell, connection, "ring", reference.target)
            self._calls = calls_to(client, self._record_owner(), reference.slot, reference.part, ring)
        return self._calls


class _Acquirable(Synchronizer):
    """A synchronizer with `acquire` and `release`, which `with` calls."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire it, waiting if necessary.

        Args:
            block: False: do not wait.
            timeout: seconds to wait at most; negative values count as zero; None waits for ever.

        Returns:
            Whether it was acquired.

        Raises:
            PeerLost: its depot is gone.
        """
        try:
            calls = self._calls
            if calls is None or calls.connection.closed:
                calls = self._calls_here()
            limit_s = limited(timeout) if block else 0.0
            if calls is not None:
                if self._acquire_free(calls):
                    return True
                try:
                    return owned(self, self._wait_here(calls, limit_s))
                except BerthsTaken:
                    pass
            return owned(self, self._ask("acquire", timeout=limit_s))
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def release(self) -> None:
        """Release it, for the next in the queue.

        Raises:
            ValueError: it was released more often than acquired.
            AssertionError: it is a recursive lock, and this thread does not own it.
            PeerLost: its depot is gone.
        """
        calls = self._calls
        if calls is None or calls.connection.closed:
            calls = self._calls_here()
        if calls is None or not (self._release_unwanted(calls) or self._wake_here(calls)):
            self._ask("release")

    def _acquire_free(self, calls: HostCalls) -> bool:
        """Acquire it if nobody has to wait for that; returns whether that was done."""
        raise NotImplementedError

    def _release_unwanted(self, calls: HostCalls) -> bool:
        """Release it if nobody waits for it; returns whether that was done."""
        raise NotImplementedError

    def _wait_here(self, calls: HostCalls, limit_s: float | None) -> bool | str:
        """Wait for it in memory that this host shares."""
        raise NotImplementedError

    def _wake_here(self, calls: HostCalls) -> bool:
        """Release it, and wake the next thread there; returns whether that was done."""
        raise NotImplementedError

    def __enter__(self) -> bool:
        calls = self._calls
        if calls is not None and not calls.connection.closed and self._acquire_free(calls):
            return True
        try:
            return self.acquire()
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class Lock(_Acquirable):
    """A lock, which any thread may release. If its owner dies, it is released, and the next owner logs the death.

    Example:
        >>> import ropewalk as rw
        >>> lock = rw.Lock()
        >>> with lock:
        ...     lock.acquire(block=False)
        False

    Args:
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        StartFailed: there is no depot to hold it, and none can be started.
    """

    _RECURSIVE = False

    def __init__(self, *, session: Session | None = None, ctx: Any = None) -> None:
        session = session or session_of(ctx)
        (reference,) = create("lock", self._RECURSIVE, label=type(self).__name__, session=session)
        SharedObject.__init__(self, reference, is_new=True)

    def _acquire_free(self, calls: HostCalls) -> bool:
        return acquire_lock(calls, self._RECURSIVE)

    def _release_unwanted(self, calls: HostCalls) -> bool:
        return release_lock(calls, self._RECURSIVE)

    def _wait_here(self, calls: HostCalls, limit_s: float | None) -> bool | str:
        return calls.wait_for_lock(self._RECURSIVE, limit_s, self._gone)

    def _wake_here(self, calls: HostCalls) -> bool:
        return calls.release_lock(self._RECURSIVE)

    def locked(self) -> bool:
        """Whether it has an owner at this moment."""
        return self._ask("locked")

    def holder(self) -> str:
        """Return a description of its current owner; "" if there is none."""
        return self._ask_depot("holder")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(owner={self._standing()[0]})>"

    def _standing(self) -> tuple[str, int | str]:
        """Return its owner and how often it is acquired, in the words of `multiprocessing`."""
        try:
            who, depth = self._ask("standing")
        except PeerLost:
            return "unknown", "unknown"
        if who == "me":
            thread = threading.current_thread().name
            return current_process().name + ("" if thread == "MainThread" else f"|{thread}"), depth
        if who == "nobody":
            return "None", 0
        return ("SomeOtherThread" if who == "other thread" else "SomeOtherProcess"), "nonzero"


class RLock(Lock):
    """A lock that its owner may acquire again, and that no other thread may release.

    Args:
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        StartFailed: there is no depot to hold it, and none can be started.
    """

    _RECURSIVE = True

    def __repr__(self) -> str:
        who, depth = self._standing()
        return f"<{type(self).__name__}({who}, {depth})>"


class Semaphore(_Acquirable):
    """A counter that `acquire` decrements, waiting while it is zero.

    The count that a process acquired is not returned when it dies: a semaphore is as often a signal as a permit.

    Args:
        value: the initial count.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        ValueError: the value is negative.
        StartFailed: there is no depot to hold it, and none can be started.
    """

    @user_frames_only
    def __init__(self, value: int = 1, *, session: Session | None = None, ctx: Any = None) -> None:
        self._make(value, None, session or session_of(ctx))

    def _make(self, value: int, bound: int | None, session: Session | None) -> None:
        (reference,) = create("semaphore", value, bound, label=type(self).__name__, session=session)
        SharedObject.__init__(self, reference, is_new=True)

    def _wait_here(self, calls: HostCalls, limit_s: float | None) -> bool:
        return calls.wait_for_permit(limit_s, self._gone)

    def _wake_here(self, calls: HostCalls) -> bool:
        return calls.give_permit()

    def _acquire_free(self, calls: HostCalls) -> bool:
        return add(calls, -1)

    def _release_unwanted(self, calls: HostCalls) -> bool:
        return add(calls, 1)

    def get_value(self) -> int:
        """Return the current count."""
        return self._ask("get_value")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._shown_value()})>"

    def _shown_value(self) -> int | str:
        try:
            return self.get_value()
        except PeerLost:
            return "unknown"


class BoundedSemaphore(Semaphore):
    """A semaphore that cannot be released more times than it was acquired.

    Args:
        value: the initial count, and the highest.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        ValueError: the value is negative.
        StartFailed: there is no depot to hold it, and none can be started.
    """

    @user_frames_only
    def __init__(self, value: int = 1, *, session: Session | None = None, ctx: Any = None) -> None:
        self._bound = value
        self._make(value, value, session or session_of(ctx))

    def _facts(self) -> dict[str, Any]:
        return {"_bound": self._bound}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._shown_value()}, maxvalue={self._bound})>"


def owned(what: SharedObject, outcome: bool | str) -> bool:
    """Return whether an acquire succeeded; logs a warning if the previous owner died with the lock."""
    if isinstance(outcome, str):
        label = what._reference.label  # pyright: ignore[reportPrivateUsage]
        logger.warning("%s was %s; what it guards may be half done", label, outcome)
        return True
    return outcome


__all__ = ["BoundedSemaphore", "Lock", "RLock", "Semaphore", "Synchronizer", "limited", "owned"]
