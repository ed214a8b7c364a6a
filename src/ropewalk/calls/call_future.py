"""The future of a call: a `concurrent.futures.Future` whose waiting thread reads the answer itself.

A `Future` costs more than the rest of a small call, because it has a lock and a condition. This one creates them only
when they are needed: when a callback is added or `concurrent.futures.wait` looks at it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from ropewalk.calls.pending import Lost, NotServed, PendingCall
from ropewalk.html_table import html_box, html_failure, html_headline

if TYPE_CHECKING:
    from ropewalk.calls.replica import CallRequest, ReplicaClient
    from ropewalk.calls.resolver import ServiceRoute

_PENDING, _CANCELLED, _FINISHED = "PENDING", "CANCELLED", "FINISHED"
"""The names that `concurrent.futures` gives to its states."""
_finishing = threading.Lock()
"""Held briefly while a future is finished or gets its condition."""


class CallFuture(PendingCall, Future[Any]):
    """A call whose answer is asked for later or passed to a callback."""

    alone = True
    # The attributes that `Future.__init__` would set, except for the condition and the two lists, which `__getattr__`
    # makes.
    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    route: ServiceRoute | None = None
    """The route over which it was last sent; None if it was not sent yet."""

    def __init__(self, replica: ReplicaClient, request: CallRequest) -> None:
        PendingCall.__init__(self, replica.name)
        self.replica = replica
        self.request: CallRequest | None = request
        """The call itself, until it is answered: it may have to be sent again."""

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":
            made: Any = threading.Condition()
        elif name in ("_waiters", "_done_callbacks"):
            made = []
        else:
            raise AttributeError(name)
        with _finishing:
            return self.__dict__.setdefault(name, made)

    def _repr_html_(self) -> str:
        has_failed = self._state == _FINISHED and self._exception is not None
        state = "failed" if has_failed else {_PENDING: "running", _FINISHED: "done"}.get(self._state, "cancelled")
        call = f"{self.replica.name}.{self.request.facts.name}" if self.request else self.replica.name
        return html_box(html_headline(call, state), html_failure(repr(self._exception) if has_failed else ""))

    def result(self, timeout: float | None = None) -> Any:
        """Return the call's result, or raise its exception; see `concurrent.futures.Future.result`."""
        if self._state != _FINISHED:
            self._await(timeout)
        if self._state != _FINISHED or self._exception is not None:
            return super().result(0)  # raises, and breaks the reference cycle
        return self._result

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result in a coroutine; cancelling its task cancels the call."""
        import asyncio  # a slow import, which a program that awaits has done already

        return asyncio.wrap_future(self).__await__()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the call's exception or None; see `concurrent.futures.Future.exception`."""
        self._await(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call a function when the answer has arrived; see `concurrent.futures.Future.add_done_callback`."""
        super().add_done_callback(fn)
        if not self.done() and self.route:
            self.route.connection.watch(self)

    def cancel(self) -> bool:
        """Give up the call: it does not run if it still waits for its turn, and its answer is dropped if it runs."""
        cancelled = super().cancel()
        if self._state == _CANCELLED:
            self.set_running_or_notify_cancel()  # as an executor does, and as `concurrent.futures.wait` needs it
            self._let_go()
            if self.route:
                self.route.connection.cancel(self)
        return cancelled

    # Without the condition that the methods of `Future` acquire: a state is read in one step.

    def done(self) -> bool:
        """Whether it has a result or an exception, or was cancelled."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state not in (_PENDING, _FINISHED)

    @property
    def has_watchers(self) -> bool:
        """Whether a callback or waiting thread is to be told when it is done."""
        return "_done_callbacks" in self.__dict__ or "_waiters" in self.__dict__

    def settle(self) -> None:
        """Finish the future: the answer has arrived, or never will."""
        try:
            value = self.value()
        except (Lost, NotServed) as error:
            self.replica.recover(self, error)
        except BaseException as error:
            self.finish(None, error)
        else:
            self.finish(value)

    def expire(self) -> None:
        """Finish the future after its deadline has passed and the call was cancelled."""
        self.finish(None, self.replica.too_late(self.request.facts.name if self.request else ""))

    def finish(self, value: Any, error: BaseException | None = None) -> None:
        """Set a result or an exception, unless the future was cancelled meanwhile."""
        self._let_go()
        with _finishing:
            if "_condition" not in self.__dict__:  # no thread waits for it by means of `concurrent.futures`
                self._result, self._exception, self._state = value, error, _FINISHED
                return
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass  # it was cancelled

    def _let_go(self) -> None:
        """Release the call, which will not be sent again."""
        request, self.request = self.request, None
        if request:
            request.over()

    def _await(self, timeout: float | None) -> None:
        """Wait until the future is done.

        Raises:
            TimeoutError: it is not done after `timeout` seconds.
        """
        due = None if timeout is None else time.monotonic() + timeout
        while self.route and not self.done():
            connection = self.route.connection
            soonest = self.due if due is None else due if self.due is None else min(due, self.due)
            if not connection.wait(self, soonest):
                if self.due is not None and time.monotonic() >= self.due:
                    connection.give_up(self)
                else:
                    raise TimeoutError
            elif not self.done():
                break  # another thread settles it, or finds out what became of the service
        if not self.done():
            # Not `result`, which would raise the call's exception; `exception` has to return it.
            super().exception(None if due is None else max(0.0, due - time.monotonic()))


__all__ = ["CallFuture"]
