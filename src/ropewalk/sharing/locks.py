"""Locks and semaphores between any processes of a run, as in `multiprocessing`.

    with lock: ─ acquire ─▶ depot: one owner, the others in line ─ release ─▶ the next

Each is a handle; what it stands for lives in a depot, and so its waits cost no processor and end with those who wait.
What differs from `multiprocessing`: everybody is served in turn, and a lock whose owner dies is free again; the next
owner logs a warning about that.
"""

from __future__ import annotations

import logging
import threading
from multiprocessing.process import current_process
from types import TracebackType
from typing import Any, Self

from ropewalk.errors import PeerLost
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import session_of
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject, create

logger = logging.getLogger(__name__)


class Synchronizer(SharedObject):
    """What locks, semaphores, conditions, events and barriers have in common."""

    @classmethod
    def at(cls, reference: ObjectLocation, **facts: Any) -> Self:
        """A handle of what this process has just made elsewhere than in its depot, such as in a manager.

        Args:
            reference: where that is.
            facts: the attributes that go with a handle; see `_facts` of the class.
        """
        made = cls.__new__(cls)
        SharedObject.__init__(made, reference, is_new=True)
        made.__dict__.update(facts)
        return made


class _Acquirable(Synchronizer):
    """What is acquired and released, also by `with`."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Wait until it can be had, and have it.

        Args:
            block: False to have it at once or not at all.
            timeout: how many seconds to wait at most; below zero is as zero.

        Returns:
            Whether it was acquired.

        Raises:
            PeerLost: where it lived is gone.
        """
        return owned(self, self._ask("acquire", timeout=timeout if block else 0.0))

    def release(self) -> None:
        """Give it to the next in line.

        Raises:
            ValueError: it was released more often than acquired.
            AssertionError: it is a recursive lock, and this thread does not own it.
            PeerLost: where it lived is gone.
        """
        self._ask("release")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class Lock(_Acquirable):
    """A lock, which anybody may release. If its owner dies, it is free again, and its next owner logs who died.

    Args:
        session: of the run it is for; by default the one that this process runs in.
        ctx: a context whose session it is for, instead; one of multiprocessing's changes nothing.

    Raises:
        StartFailed: there is no process that could hold it, and none can be started.
    """

    _RECURSIVE = False

    def __init__(self, *, session: Session | None = None, ctx: Any = None) -> None:
        session = session or session_of(ctx)
        (reference,) = create("lock", self._RECURSIVE, label=type(self).__name__, session=session)
        SharedObject.__init__(self, reference, is_new=True)

    def locked(self) -> bool:
        """Whether anybody owns it just now."""
        return self._ask("locked")

    def holder(self) -> str:
        """Who owns it just now, for people; "" if nobody does."""
        return self._ask("holder")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(owner={self._standing()[0]})>"

    def _standing(self) -> tuple[str, int | str]:
        """Who owns it and how often, in the words of `multiprocessing`."""
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
    """A lock that its owner may acquire again, and that nobody else may release.

    Args:
        session: of the run it is for; by default the one that this process runs in.
        ctx: a context whose session it is for, instead; one of multiprocessing's changes nothing.

    Raises:
        StartFailed: there is no process that could hold it, and none can be started.
    """

    _RECURSIVE = True

    def __repr__(self) -> str:
        who, depth = self._standing()
        return f"<{type(self).__name__}({who}, {depth})>"


class Semaphore(_Acquirable):
    """A count that `acquire` takes from, and waits while it is zero.

    What a process acquired is not given back when it dies: a semaphore is a signal as often as it is a permit.

    Args:
        value: the count at first.
        session: of the run it is for; by default the one that this process runs in.
        ctx: a context whose session it is for, instead; one of multiprocessing's changes nothing.

    Raises:
        ValueError: the value is below zero.
        StartFailed: there is no process that could hold it, and none can be started.
    """

    def __init__(self, value: int = 1, *, session: Session | None = None, ctx: Any = None) -> None:
        self._make(value, None, session or session_of(ctx))

    def _make(self, value: int, bound: int | None, session: Session | None) -> None:
        (reference,) = create("semaphore", value, bound, label=type(self).__name__, session=session)
        SharedObject.__init__(self, reference, is_new=True)

    def get_value(self) -> int:
        """The count."""
        return self._ask("get_value")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._shown_value()})>"

    def _shown_value(self) -> int | str:
        try:
            return self.get_value()
        except PeerLost:
            return "unknown"


class BoundedSemaphore(Semaphore):
    """A semaphore that is not released more often than it was acquired.

    Args:
        value: the count at first, and the highest.
        session: of the run it is for; by default the one that this process runs in.
        ctx: a context whose session it is for, instead; one of multiprocessing's changes nothing.

    Raises:
        ValueError: the value is below zero.
        StartFailed: there is no process that could hold it, and none can be started.
    """

    def __init__(self, value: int = 1, *, session: Session | None = None, ctx: Any = None) -> None:
        self._bound = value
        self._make(value, value, session or session_of(ctx))

    def _facts(self) -> dict[str, Any]:
        return {"_bound": self._bound}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._shown_value()}, maxvalue={self._bound})>"


def owned(what: SharedObject, outcome: bool | str) -> bool:
    """Say whether it is owned now, and in the log if its owner before died with it."""
    if isinstance(outcome, str):
        label = what._reference.label  # pyright: ignore[reportPrivateUsage]
        logger.warning("%s was %s; what it guards may be half done", label, outcome)
        return True
    return outcome


__all__ = ["BoundedSemaphore", "Lock", "RLock", "Semaphore", "Synchronizer", "owned"]
