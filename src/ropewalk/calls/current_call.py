"""The call that the running code serves, as that code sees it: whether its caller still waits for the answer.

    @rw.concurrent(64)
    def insert(self, item):
        with self.changed:                                  # a threading.Condition
            rw.wait_for(self.changed, self.may_insert)      # ends when the caller dies, cancels, or is out of time
            self.items.append(item)

A method that waits in any other way outlives its caller: no other thread can wake a thread that waits in C.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ropewalk.calls import call_context as frames
from ropewalk.calls.call_context import CallContext
from ropewalk.errors import CallCancelled, DeadlineExceeded

T = TypeVar("T")


class CurrentCall:
    """The call that a method is answering; may be passed to threads that the method starts.

    Outside any call there is one too, which is never over, so that objects can also be used without a program.
    """

    def __init__(self, frame: CallContext | None) -> None:
        self._call = frame.call if frame else None
        self._deadline = frame.deadline if frame else None

    @property
    def label(self) -> str:
        """Service and method, such as "replay.insert"; empty outside of any call."""
        return self._call.label if self._call else ""

    @property
    def over(self) -> bool:
        """Whether the answer is no longer wanted, or the service is being stopped."""
        return bool(self._why_over())

    @property
    def stream(self) -> str:
        """Identifies the caller, with its generation, if its client has `on_lost="retry"`; otherwise empty.

        A repeated call is answered from the object's record and does not run again. The record cannot tell which calls
        of `@concurrent` methods are part of a state that was taken while they ran: such methods can store the
        `sequence` of each stream in that state themselves, under the lock that guards it.
        """
        once = getattr(self._call, "once", None)
        return f"{once.owner}#{once.generation}" if once else ""

    @property
    def sequence(self) -> int:
        """The call's number in its stream, from 1, which a repeated call shares; otherwise 0."""
        once = getattr(self._call, "once", None)
        return once.sequence if once else 0

    def time_left_s(self) -> float | None:
        """Seconds until the caller's deadline, 0 if it has passed; None if there is none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def check(self) -> None:
        """Raise if the call is over; for methods that compute for a long time.

        Raises:
            CallCancelled: the caller is gone or gave the call up, or the service is being stopped.
            DeadlineExceeded: the caller's deadline has passed.
        """
        why = self._why_over()
        if why and self._deadline is not None and why == _LATE:
            raise DeadlineExceeded(f"the deadline of {self.label or 'this code'} has passed", call=self.label)
        if why:
            raise CallCancelled(f"{self.label} is over before it has returned: {why}", call=self.label, reason=why)

    def on_over(self, callback: Callable[[], object]) -> None:
        """Call a function, in a thread of its own, when the caller ends or cancels the call, or the service is stopped.

        The function is called now, in this thread, if that has happened already, and never if the method returns first.
        Callers that are alive cancel their calls themselves when a deadline passes.

        Args:
            callback: takes no arguments; its result is ignored.
        """
        call = self._call
        if call is None:
            return
        once = threading.Lock()

        def tell() -> None:
            if once.acquire(blocking=False):
                callback()

        frames.watch(call, tell)
        if call.given_up or call.ending:
            tell()

    def _why_over(self) -> str:
        call = self._call
        if call is not None and (call.given_up or call.ending):
            return call.given_up or call.ending
        return _LATE if self._deadline is not None and time.monotonic() >= self._deadline else ""

    def __repr__(self) -> str:
        return f"<call of {self.label}>" if self._call else "<no call>"


_LATE = "the deadline has passed"


def current_call() -> CurrentCall:
    """Return the call that the running code is answering."""
    return CurrentCall(frames.current.get())


def wait_for(condition: threading.Condition, predicate: Callable[[], T], timeout_s: float | None = None) -> T:
    """Wait on a condition until `predicate()` is true or the call that waits here is over.

    Like `threading.Condition.wait_for`, but inside a method of a service the wait also ends when the caller dies,
    cancels its future or reaches its deadline, and when the service is stopped. So a waiting call occupies one of the
    places of a `@concurrent` method only while its caller is alive. Work that must not be done for a caller that has
    gone belongs after this call, which raises even if the predicate is true by then.

    Args:
        condition: held by the running thread, which holds it again when this returns or raises.
        predicate: called with the condition held.
        timeout_s: seconds to wait at most; None sets no timeout here.

    Returns:
        The last result of `predicate`, which is false only after `timeout_s`.

    Raises:
        CallCancelled: the caller has gone or cancelled the call, or the service is being stopped.
        DeadlineExceeded: the caller's deadline passed.
    """
    frame = frames.current.get()
    call = frame.call if frame else None
    limit = None if timeout_s is None else time.monotonic() + timeout_s
    deadline = frame.deadline if frame else None

    def wake() -> None:
        with condition:
            condition.notify_all()

    if call is not None:
        frames.watch(call, wake)
    try:
        while True:
            if call is not None and call.given_up:
                current_call().check()
            if value := predicate():
                return value
            current_call().check()
            now = time.monotonic()
            if limit is not None and now >= limit:
                return value
            before_waiting = getattr(getattr(call, "served", None), "before_waiting", None)
            if before_waiting:
                before_waiting()
            ends = [each - now for each in (limit, deadline) if each is not None]
            condition.wait(min(ends) if ends else None)
    finally:
        if call is not None:
            frames.unwatch(call, wake)


__all__ = ["CurrentCall", "current_call", "wait_for"]
