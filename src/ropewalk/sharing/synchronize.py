"""Conditions, events and barriers between any processes of a run; with locks and semaphores, `multiprocessing`'s set.

Unlike in `multiprocessing`, no process polls, notifications are not lost with processes that die, and a barrier
names the party that broke it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from ropewalk.errors import PeerLost
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import session_of
from ropewalk.sharing.host_calls import BerthsTaken
from ropewalk.sharing.locks import BoundedSemaphore, Lock, RLock, Semaphore, Synchronizer, limited, owned
from ropewalk.sharing.resting_calls import is_set, put
from ropewalk.sharing.shared_object import SharedObject, create
from ropewalk.user_frames import shortened, user_frames_only

_ALL = 1 << 30
"""More threads than can wait."""


class Condition(Synchronizer):
    """A condition variable: threads wait without their lock until another thread notifies them.

    A notification is never lost with a process that dies: another waiting one gets it then.

    Args:
        lock: the lock that `wait` releases and acquires again; a new RLock by default.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        TypeError: the lock is not one of Ropewalk's.
        StartFailed: there is no depot to hold it, and none can be started.
    """

    def __init__(self, lock: Lock | None = None, *, session: Session | None = None, ctx: Any = None) -> None:
        if lock is not None and not isinstance(lock, Lock):
            raise TypeError(
                f"a condition needs a lock that all processes of the run can reach, not {lock!r}; "
                "make it with ropewalk.Lock() or ropewalk.RLock()"
            )
        self._lock = RLock(session=session, ctx=ctx) if lock is None else lock
        (reference,) = create("condition", self._lock._reference, label=type(self).__name__)  # pyright: ignore[reportPrivateUsage]
        SharedObject.__init__(self, reference, is_new=True)

    def _facts(self) -> dict[str, Any]:
        return {"_lock": self._lock}

    def _record_owner(self) -> int:
        return self._lock._reference.target  # pyright: ignore[reportPrivateUsage]

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire its lock; see `Lock.acquire`."""
        try:
            return self._lock.acquire(block, timeout)
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def release(self) -> None:
        """Release its lock; see `Lock.release`."""
        self._lock.release()

    def __enter__(self) -> bool:
        try:
            return self._lock.__enter__()
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, traceback)

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait until notified, and acquire the lock again as many times as it was owned.

        Args:
            timeout: seconds to wait at most for a notification; None waits for ever.

        Returns:
            Whether it was notified. The lock is owned again in either case.

        Raises:
            AssertionError: this thread does not own the lock.
            PeerLost: the depot of the condition is gone.
        """
        try:
            return owned(self._lock, self._wait(limited(timeout)))
        except (AssertionError, PeerLost):
            raise
        except BaseException as error:  # Ctrl-C: a thread must own the lock to leave the caller's `with` block
            self._ask("resume")
            shortened(error)
            raise

    def _wait(self, limit_s: float | None) -> bool | str:
        calls = self._calls_here()
        if calls is not None:
            try:
                return calls.wait_at_condition(limit_s, self._gone)
            except BerthsTaken:
                pass
        return self._ask("wait", timeout=limit_s)

    @user_frames_only
    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until a predicate, which is evaluated after each notification, is true.

        Args:
            predicate: called with the lock owned.
            timeout: seconds to wait at most; None waits for ever.

        Returns:
            The last result of the predicate.
        """
        return threading.Condition.wait_for(cast(Any, self), predicate, timeout)  # it only calls `wait`

    def notify(self, n: int = 1) -> None:
        """Wake the threads that have waited longest.

        Args:
            n: the largest number of threads to wake.

        Raises:
            AssertionError: this thread does not own the lock.
            PeerLost: the depot of the condition is gone.
        """
        calls = self._calls_here()
        if calls is None or n < 1 or (n := calls.notify(n)):
            self._ask("notify", n)

    def notify_all(self) -> None:
        """Wake all waiting threads; raises as `notify`."""
        calls = self._calls_here()
        if calls is None or calls.notify(_ALL):
            self._ask("notify_all")

    def __repr__(self) -> str:
        try:
            num_waiters = self._ask("num_waiters")
        except PeerLost:
            num_waiters = "unknown"
        return f"<{type(self).__name__}({self._lock}, {num_waiters})>"


class Event(Synchronizer):
    """A flag that threads and processes wait for.

    Args:
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        StartFailed: there is no depot to hold it, and none can be started.
    """

    def __init__(self, *, session: Session | None = None, ctx: Any = None) -> None:
        (reference,) = create("event", label=type(self).__name__, session=session or session_of(ctx))
        SharedObject.__init__(self, reference, is_new=True)

    def is_set(self) -> bool:
        """Whether the flag is set."""
        known = self._known()
        return self._ask("is_set") if known is None else known

    def _known(self) -> bool | None:
        calls = self._calls
        return None if calls is None or calls.connection.closed else is_set(calls)

    def _put(self, is_set: bool) -> bool:
        calls = self._calls
        return calls is not None and not calls.connection.closed and put(calls, is_set)

    def set(self) -> None:
        """Set the flag. All waiting threads continue, even if it is cleared immediately afterwards."""
        if not self._put(True):
            calls = self._calls_here()
            calls.set_event() if calls else self._ask("set")

    def clear(self) -> None:
        """Clear the flag."""
        if not self._put(False):
            self._ask("clear")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set.

        Args:
            timeout: seconds to wait at most; None waits for ever.

        Returns:
            Whether it was set.

        Raises:
            PeerLost: the depot of the event is gone.
        """
        if self._known():
            return True
        try:
            calls = self._calls_here()
            if calls is not None:
                with contextlib.suppress(BerthsTaken):
                    return calls.wait_for_event(limited(timeout), self._gone)
            return self._ask("wait", timeout=timeout)
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def __repr__(self) -> str:
        try:
            state = "set" if self.is_set() else "unset"
        except PeerLost:
            state = "unknown"
        return f"<{type(self).__qualname__} at {id(self):#x} {state}>"


class Barrier(Synchronizer):
    """A number of parties that wait for each other, round after round.

    Args:
        parties: the number of parties.
        action: called by one party when all have arrived, before they continue.
        timeout: seconds to wait at most if `wait` is given no timeout.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        ValueError: `parties` is less than 1.
        StartFailed: there is no depot to hold it, and none can be started.
    """

    @user_frames_only
    def __init__(
        self,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
        *,
        session: Session | None = None,
        ctx: Any = None,
    ) -> None:
        self._parties = parties
        self._action = action
        self._timeout = timeout
        (reference,) = create("barrier", parties, label=type(self).__name__, session=session or session_of(ctx))
        SharedObject.__init__(self, reference, is_new=True)

    def _facts(self) -> dict[str, Any]:
        return {"_parties": self._parties, "_action": self._action, "_timeout": self._timeout}

    @user_frames_only
    def wait(self, timeout: float | None = None) -> int:
        """Wait for the other parties.

        Args:
            timeout: seconds to wait at most; by default that of the barrier. When it passes, the barrier is broken for
                all parties.

        Returns:
            The order in which this party arrived: 0 for the first.

        Raises:
            threading.BrokenBarrierError: a party was late, died or aborted, or the barrier was reset; says which.
            PeerLost: the depot of the barrier is gone.
            Exception: raised by the action, in the party that called it.
        """
        outcome = self._ask("wait", self._action is not None, timeout=self._timeout if timeout is None else timeout)
        if isinstance(outcome, int):
            return outcome
        assert self._action
        _, index = outcome
        try:
            self._action()
        except BaseException:
            self.abort()
            raise
        self._ask("release")
        return index

    def reset(self) -> None:
        """Reset the barrier: waiting parties get BrokenBarrierError."""
        self._ask("reset")

    def abort(self) -> None:
        """Break the barrier: waiting parties, and all that arrive, get BrokenBarrierError until it is reset."""
        self._ask("abort")

    @property
    def parties(self) -> int:
        """The number of parties that wait for each other."""
        return self._parties

    @property
    def n_waiting(self) -> int:
        """The number of parties that are waiting at this moment."""
        return self._ask("n_waiting")

    @property
    def broken(self) -> bool:
        """Whether the barrier is broken."""
        return self._ask("broken")

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__qualname__} at {id(self):#x}"
        try:
            return f"<{name}: {'broken' if self.broken else f'waiters={self.n_waiting}/{self.parties}'}>"
        except PeerLost:
            return f"<{name}: unknown>"


__all__ = ["Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"]
