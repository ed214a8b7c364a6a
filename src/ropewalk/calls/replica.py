"""Calls to one replica of a service, wherever it runs, in each of the ways of calling.

    pickle the arguments ─▶ connection? ─no─▶ resolver: find, dial
                              │ yes
                              ├─▶ ask (the fast path), or begin and wait ─▶ value
                              └─▶ lost under way ─▶ sent again if it did not run, or may run twice

Futures never wait for a service: calls that cannot be sent at once are put into the backlog, which one thread sends in
order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from ropewalk.calls import call_context
from ropewalk.calls.begun_call import BegunCall
from ropewalk.calls.call_count import CallCount
from ropewalk.calls.call_future import CallFuture
from ropewalk.calls.caller import Caller
from ropewalk.calls.frozen import Frozen
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import Call, OnceCall
from ropewalk.calls.payloads import Handover, PackedValue, pack_arguments
from ropewalk.calls.pending import AwaitedCall, Busy, Dropped, Lost, NotServed, PendingCall
from ropewalk.calls.remote_stream import STREAM_CREDIT, RemoteStream
from ropewalk.calls.resolver import ReplicaResolver, ServiceRoute
from ropewalk.calls.sequences import Sequence
from ropewalk.errors import CallError, DeadlineExceeded
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.transport.link import Link

_FUTURE_DIAL_S = 0.2
"""Dial timeout of a future, in seconds; a service that has just died may be restarted only minutes later."""


class CallRequest:
    """A call that can be sent, and sent again: its arguments are those of the moment in which it was made."""

    __slots__ = ("chain", "due", "facts", "keywords", "number", "packed", "running", "sequence", "stream")

    def __init__(
        self,
        link: Link | Handover | None,
        facts: MethodFacts,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        keep: bool,
        shared: Frozen[Any] | None = None,
        stream: str = "",
        sequence: Sequence | None = None,
        packed: PackedValue | None = None,
    ) -> None:
        running = self.running = call_context.current.get()
        if running is None:
            self.chain, self.due = (), None
        else:
            self.chain, self.due = running.chain_here(), running.deadline
        self.facts = facts
        self.keywords = bool(kwargs)
        self.packed = packed or pack_arguments(link, args, kwargs, keep=keep, with_code=facts.with_code, shared=shared)
        self.stream, self.sequence = stream, sequence
        self.number = sequence.next() if sequence else 0

    def over(self) -> None:
        """Release the call, which will not be sent again."""
        if self.sequence:
            self.sequence.over(self.number)

    def message(self, target: int, credit: int = 0) -> Call:
        """The message for an object."""
        timeout_s = None if self.due is None else max(0.0, self.due - time.monotonic())
        if self.sequence:
            acked, also_acked = self.sequence.acknowledgement()
            return OnceCall(
                number=0,
                target=target,
                method=self.facts.name,
                keywords=self.keywords,
                timeout_s=timeout_s,
                chain=self.chain,
                shared=self.packed.shared,
                credit=credit,
                stream=self.stream,
                sequence=self.number,
                acked=acked,
                also_acked=also_acked,
            )
        return Call(0, target, self.facts.name, self.keywords, timeout_s, self.chain, self.packed.shared, credit)

    def begin(self, route: ServiceRoute, pending: PendingCall, credit: int = 0) -> None:
        """Send it.

        Raises:
            Lost: the link has ended; it was not sent.
            TimeoutError: the deadline passed before there was room for one more call.
        """
        pending.due = self.due
        connection = route.connection
        packed = self.packed
        if packed.fds and not connection.link.stream.carries_fds:  # the service has moved to another host
            packed = self.packed = packed.unfolded()
        connection.begin(self.message(route.place.target, credit), packed, pending)


class ReplicaClient:
    """Calls one replica of a service; from any thread."""

    def __init__(
        self, caller: Caller, name: str, index: int, *, retries: bool = False, count: CallCount | None = None
    ) -> None:
        self.index = index
        self._count = count or CallCount()
        self._retries = retries
        self._caller = caller
        self.name = name
        self._where = ReplicaResolver(caller, name, index)
        self._backlog: deque[tuple[CallFuture, Lost | NotServed | None]] = deque()
        self._sending = False
        self._lock = threading.Lock()

    @property
    def num_pending(self) -> int:
        """Number of calls of this process to the replica's process that are under way."""
        route = self._where.route
        if not route:
            return 0
        spares = route.connection.spares
        return route.connection.num_pending + (spares.num_taken if spares else 0)

    @property
    def is_up(self) -> bool:
        """Whether a call is worth trying: it would be sent at once, or the directory says that the service is up."""
        route = self._where.route
        return (route is not None and not route.connection.closed) or self._where.find().state == "up"

    def call(self, facts: MethodFacts, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call and wait for the answer."""
        self._count.num += 1
        route = self._where.route
        if route is None or route.connection.closed:
            route = self._route(facts)
        # The fast path for most calls: outside of any call or deadline, without anything to remember.
        packed = error = None
        if not kwargs and (facts.idempotent or not self._retries) and call_context.current.get() is None:
            connection = route.connection
            if connection.reading_thread and not facts.batch_size:  # calls of one link arrive together, for one batch
                connection = connection.beside()
            packed = pack_arguments(connection.link, args, kwargs, keep=False, with_code=facts.with_code)
            if not packed.fds:
                try:
                    return connection.ask(Call(0, route.place.target, facts.name, False, None, (), (), 0), packed)
                except Busy:
                    pass
                except (Lost, NotServed) as lost:
                    error = lost
        return self._call(
            route,
            self._request(route.connection.link, facts, args, kwargs, keep=False, packed=packed),
            error,
        )

    def begin(self, facts: MethodFacts, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BegunCall:
        """Call, and return what the answer is asked for later; waits for a service that is not up yet."""
        self._count.num += 1
        route = self._route(facts)
        request = self._request(route.connection.link, facts, args, kwargs, keep=True)
        pending, route = self._begin_somewhere(request, route, PendingCall)
        return BegunCall(self, request, route, pending)

    def answer(self, request: CallRequest, route: ServiceRoute, pending: PendingCall) -> Any:
        """Wait for the answer to a call that was sent, and return it."""
        return self._call(route, request, None, pending)

    def _call(
        self,
        route: ServiceRoute,
        request: CallRequest,
        error: Lost | NotServed | None,
        begun: PendingCall | None = None,
    ) -> Any:
        """Call until there is an answer.

        Args:
            route: where to call first.
            request: the call.
            error: what became of it there, if that is known.
            begun: what waits for its answer there, if it was sent already.
        """
        try:
            while True:
                try:
                    if error is not None:
                        raise error
                    if begun is None:
                        return self._ask(request, route)
                    pending, begun = begun, None
                    return self._answer(request, route, pending)
                except Lost as lost:
                    if lost.sent:
                        self._may_repeat(request, route)
                except NotServed as moved:
                    self._where.wait_for_move(route, str(moved))
                error = None
                route = self._route(request.facts)
        finally:
            request.over()
            request.packed.close()

    def future(
        self,
        facts: MethodFacts,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shared: Frozen[Any] | None = None,
    ) -> CallFuture:
        """Call without waiting, except while `MAX_IN_FLIGHT` calls are under way.

        Args:
            facts: of the method.
            args: positional arguments.
            kwargs: keyword arguments.
            shared: for calls of several replicas with the same arguments; see `shared_arguments`.
        """
        self._count.num += 1
        route = self._where.route
        if (route is None or route.connection.closed) and self._where.find().state == "up":
            try:
                route = self._where.connect(facts.name, time.monotonic() + _FUTURE_DIAL_S)
            except CallError:  # the service went at this moment, or is slow to reach: the call waits in the backlog
                route = None
        link = route.connection.link if route else self._caller.handover
        request = self._request(link, facts, args, kwargs, keep=True, shared=shared)
        future = CallFuture(self, request)
        if route and not self._backlog:
            with contextlib.suppress(Lost):
                self._begin_future(future, request, route)
                return future
        self._later(future)
        return future

    def send(
        self,
        facts: MethodFacts,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shared: Frozen[Any] | None = None,
    ) -> None:
        """Call and drop the result; waits while `MAX_IN_FLIGHT` calls are under way, or the service is not up yet."""
        self._count.num += 1
        route = self._route(facts)
        request = CallRequest(route.connection.link, facts, args, kwargs, keep=True, shared=shared)
        self._begin_somewhere(request, route, Dropped)
        request.packed.close()

    def stream(self, facts: MethodFacts, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteStream:
        """Call a generator; its items are requested as they are read."""
        self._count.num += 1
        route = self._route(facts)
        request = CallRequest(route.connection.link, facts, args, kwargs, keep=True)
        pending, route = self._begin_somewhere(request, route, PendingCall, STREAM_CREDIT)
        request.packed.close()
        return RemoteStream(self._where, route, facts.name, pending)

    # Futures

    def recover(self, future: CallFuture, error: Lost | NotServed) -> None:
        """Finish a future whose service was lost while it had the call: repeat the call, or raise what happened."""
        self._later(future, error)

    def too_late(self, call: str) -> DeadlineExceeded:
        """The exception for a call whose deadline has passed."""
        return self._where.too_late(call)

    def _begin_future(self, future: CallFuture, request: CallRequest, route: ServiceRoute) -> None:
        future.route = route
        try:
            request.begin(route, future)
        except TimeoutError as error:
            future.finish(None, self._where.too_late(request.facts.name, str(error)))
            return
        if future.has_watchers:
            route.connection.watch(future)
        if future.cancelled():
            route.connection.cancel(future)

    def _later(self, future: CallFuture, error: Lost | NotServed | None = None) -> None:
        with interrupts_deferred:  # a thread marked as sending that was never started would block all later ones
            with self._lock:
                self._backlog.append((future, error))
                start, self._sending = not self._sending, True
            if start:
                try:
                    self._caller.threads.run(self._send_backlog)
                except RuntimeError as failure:  # no thread can be started
                    self._drop_backlog(failure)

    def _drop_backlog(self, failure: RuntimeError) -> None:
        with self._lock:
            dropped, self._sending = list(self._backlog), False
            self._backlog.clear()
        for future, _ in dropped:
            future.finish(None, failure)

    def _send_backlog(self) -> None:
        while True:
            with self._lock:
                if not self._backlog:
                    self._sending = False
                    return
                future, error = self._backlog[0]  # it keeps its place until it is sent
            request: CallRequest | None = future.request
            try:
                if request is not None and not future.cancelled():
                    self._send_again(future, request, error)
            except CallError as failure:
                # Its traceback would hold these frames, and by them the call's arguments and the future itself.
                future.finish(None, failure.with_traceback(None))
            except BaseException as failure:
                future.finish(None, failure)
            self._backlog.popleft()

    def _send_again(self, future: CallFuture, request: CallRequest, error: Lost | NotServed | None) -> None:
        before = future.route
        if before is not None and isinstance(error, NotServed):
            self._where.wait_for_move(before, str(error))
        elif before is not None and error is not None:
            self._may_repeat(request, before)
        while True:
            route = self._where.connect(request.facts.name, request.due)
            future.answered = False
            try:
                self._begin_future(future, request, route)
                return
            except Lost:  # the link ended again at this moment
                continue

    # Requests

    def _request(
        self,
        link: Link | Handover | None,
        facts: MethodFacts,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        keep: bool,
        shared: Frozen[Any] | None = None,
        packed: PackedValue | None = None,
    ) -> CallRequest:
        """A call whose answer is wanted; numbered if it may not run twice and is to be repeated all the same."""
        if not self._retries or facts.idempotent:
            return CallRequest(link, facts, args, kwargs, keep=keep, shared=shared, packed=packed)
        caller = self._caller
        sequence = caller.sequence(self.name, self.index)
        return CallRequest(link, facts, args, kwargs, keep=keep, shared=shared, stream=caller.stream, sequence=sequence)

    def _may_repeat(self, request: CallRequest, route: ServiceRoute) -> None:
        """Return if a lost call that may have run is to be sent again; otherwise raise the error for it."""
        if not request.facts.idempotent:
            error, comes_back = self._where.what_became(route, request.facts.name)
            if request.sequence is None or not comes_back:
                raise error from None

    # Connections

    def _route(self, facts: MethodFacts) -> ServiceRoute:
        route = self._where.route
        if route is not None and not route.connection.closed:
            return route
        running = call_context.current.get()
        return self._where.connect(facts.name, running.deadline if running is not None else None)

    def _ask(self, request: CallRequest, route: ServiceRoute) -> Any:
        """Send a call and wait for its answer, without repeating it."""
        connection = route.connection
        if request.due is None and not request.packed.fds:
            message, running = request.message(route.place.target), request.running
            if running is not None:
                running.waits_for = connection.address, message
            try:
                return connection.ask(message, request.packed)
            except Busy:
                pass
            finally:
                if running is not None:
                    running.waits_for = None
        pending = AwaitedCall(connection.where)
        self._begin(request, route, pending)
        return self._answer(request, route, pending)

    def _answer(self, request: CallRequest, route: ServiceRoute, pending: PendingCall) -> Any:
        """Wait for the answer to a call that was sent, without repeating it."""
        connection = route.connection
        try:
            if not connection.wait(pending, request.due):
                raise self._where.too_late(request.facts.name)
            return pending.value()
        finally:
            if not pending.answered:  # the deadline passed, or Ctrl-C
                connection.cancel(pending)

    def _begin(self, request: CallRequest, route: ServiceRoute, pending: PendingCall, credit: int = 0) -> None:
        try:
            request.begin(route, pending, credit)
        except TimeoutError as error:
            raise self._where.too_late(request.facts.name, str(error)) from None

    def _begin_somewhere(
        self, request: CallRequest, route: ServiceRoute, kind: type[PendingCall], credit: int = 0
    ) -> tuple[PendingCall, ServiceRoute]:
        """Send a call without waiting for its answer, following the service until it is sent."""
        while True:
            pending = kind(route.connection.where)
            if credit:
                pending.arrived = deque()
            try:
                self._begin(request, route, pending, credit)
                return pending, route
            except Lost:
                route = self._route(request.facts)


__all__ = ["ReplicaClient"]
