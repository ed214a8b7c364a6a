"""Clients: what a handle has become inside a node.

    ps.push(grad)            blocks, returns what the method returned or raises what it raised
    ps.push.future(grad)     a concurrent.futures.Future
    await ps.push.aio(grad)  for asyncio
    ps.push.send(grad)       does not wait, and does not hear of failures
    for x in ps.batches():   a method that is a generator streams
    ps.all.push(grad)        every replica, a list; ps.any one of them; ps[2] that one

A client finds its service through the directory at each call, so it follows a
service that was restarted elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.calls import frame
from ropewalk.calls.conversation import Busy, Conversation, Lost, NotServed, Pending, value_of
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import CALLS, Call
from ropewalk.calls.payloads import Packed, pack_arguments
from ropewalk.calls.threads import Threads
from ropewalk.errors import DeadlineExceeded, ProgramStopped, ServiceLost, TransportError
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Received
from ropewalk.transport.loop import Loop

#: Items of a stream that may be under way before the reader asks for more.
STREAM_CREDIT = 16
#: When a link ends, the directory is given so long to say what became of the service.
_NEWS_S = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica of a service is, as far as the directory knows."""

    state: str
    """"up", "waiting" (it starts, or starts again), "failed", "completed" or "stopped"."""
    address: str = ""
    target: int = 0
    token: str = ""
    """What this process shows there."""
    generation: int = 0
    cause: str = ""
    """Why it is not up, in one line."""


class Directory(Protocol):
    """Knows where services are."""

    def find(self, name: str, replica: int) -> Place:
        """Where a replica is; asks, and waits for the first answer, if that is not known yet."""
        ...

    def replicas(self, name: str) -> int:
        """How many replicas a service has."""
        ...

    def wait_for_news(self, name: str, replica: int, seen: Place, timeout_s: float) -> Place:
        """Wait until a place differs from what was seen, or for so long."""
        ...


class Caller:
    """What the clients of one process share: links, the loop, the directory."""

    def __init__(self, loop: Loop, directory: Directory, run_id: str, process_id: str) -> None:
        self.loop = loop
        self.directory = directory
        self.threads = Threads("ropewalk-call")
        self._run_id = run_id
        self._process_id = process_id
        self._conversations: dict[str, Conversation] = {}
        self._closed = ""

    def converse(self, name: str, place: Place) -> Conversation:
        """The conversation with the process that a service is in; dials if there is none yet.

        Raises:
            TransportError: nobody answers there.
        """
        conversation = self._conversations.get(place.address)
        if conversation is not None and not conversation.closed:
            return conversation
        if self._closed:
            raise ProgramStopped(self._closed)
        credentials = Credentials(self._run_id, self._process_id, place.token)
        link = dial(parse_address(place.address), credentials, CALLS)
        made = Conversation(link, self.loop, name)
        other = self._conversations.setdefault(place.address, made)
        if other is not made and not other.closed:
            made.close("another thread was quicker")
            return other
        self._conversations[place.address] = made
        return made

    def lose(self, address: str, why: str) -> None:
        """The process at an address is gone: do not wait for the kernel to say so."""
        conversation = self._conversations.pop(address, None)
        if conversation:
            conversation.close(why)

    def close(self, why: str = "the program has ended") -> None:
        """End every link; calls under way are lost. May be called twice."""
        self._closed = why
        for address in list(self._conversations):
            self.lose(address, why)
        self.threads.close()

    def forget(self) -> None:
        """In a forked child: close our copies of the links, without a word."""
        for conversation in self._conversations.values():
            conversation.link.close_copy()
        self._conversations = {}


class Replica:
    """Calls one replica of a service, wherever it is."""

    def __init__(self, caller: Caller, name: str, index: int, methods: Mapping[str, MethodFacts]) -> None:
        self._caller = caller
        self._name = name
        self.index = index
        self._methods = methods
        self._place: Place | None = None
        self._conversation: Conversation | None = None

    @property
    def num_pending(self) -> int:
        """Calls of this process to it that are under way."""
        return self._conversation.num_pending if self._conversation else 0

    @property
    def is_up(self) -> bool:
        """Whether a call would be sent at once."""
        return self._conversation is not None and not self._conversation.closed

    def call(self, facts: MethodFacts, args: tuple[Any, ...], kwargs: dict[str, Any], due: float | None) -> Any:
        """Call and wait for the answer."""
        while True:
            conversation = self._conversation
            if conversation is None or conversation.closed:
                conversation = self._connect(facts, due)
            try:
                message, packed = self._message(conversation, facts, args, kwargs, due, keep=False)
                if due is None:
                    with contextlib.suppress(Busy):
                        return conversation.ask(message, packed)
                pending = conversation.begin(message, packed)
            except Lost as error:
                self._lost(conversation, facts, started=error.sent)
                continue
            except NotServed as error:
                self._moved(facts, str(error))
                continue
            try:
                if not conversation.wait(pending, due):
                    raise self._too_late(facts, due)
                return pending.value()
            except Lost:
                self._lost(conversation, facts, started=True)
            except NotServed as error:
                self._moved(facts, str(error))
            finally:
                if not pending.done:  # the deadline came, or Ctrl-C
                    conversation.cancel(pending)

    def future(
        self, facts: MethodFacts, args: tuple[Any, ...], kwargs: dict[str, Any], due: float | None
    ) -> Future[Any]:
        """Call without waiting."""
        conversation = self._conversation
        if conversation is not None and not conversation.closed and due is None:
            future = CallFuture()
            future.conversation = conversation
            future.retry = lambda: self.call(facts, args, kwargs, due) if facts.idempotent else self._refuse(facts)
            future.threads = self._caller.threads
            try:
                future.pending = self._begin(conversation, facts, args, kwargs, due, keep=True, future=future)
                return future
            except Lost:
                pass
        return self._in_thread(lambda: self.call(facts, args, kwargs, due))

    def send(self, facts: MethodFacts, args: tuple[Any, ...], kwargs: dict[str, Any], due: float | None) -> None:
        """Call and forget; waits only while too many calls are under way, or the service is not there yet."""
        while True:
            conversation = self._conversation
            if conversation is None or conversation.closed:
                conversation = self._connect(facts, due)
            try:
                self._begin(conversation, facts, args, kwargs, due, keep=True, alone=True)
                return
            except Lost:
                self._lost(conversation, facts, started=False)

    def stream(
        self, facts: MethodFacts, args: tuple[Any, ...], kwargs: dict[str, Any], due: float | None
    ) -> Iterator[Any]:
        """Call a generator; its items are asked for as they are read."""
        conversation = self._conversation
        if conversation is None or conversation.closed:
            conversation = self._connect(facts, due)
        return self._items(conversation, facts, args, kwargs, due)

    def _items(
        self, conversation: Conversation, facts: MethodFacts, args: Any, kwargs: Any, due: float | None
    ) -> Generator[Any, None, None]:
        arrived: deque[Received] = deque()
        pending = self._begin(conversation, facts, args, kwargs, due, keep=True, arrived=arrived)
        num_taken = 0
        try:
            while True:
                while arrived:
                    received = arrived.popleft()
                    num_taken += 1
                    if num_taken == STREAM_CREDIT // 2:
                        conversation.ask_for_more(pending, num_taken)
                        num_taken = 0
                    yield value_of(received, conversation.where)
                if pending.done:
                    if pending.received is not None:
                        value_of(pending.received, conversation.where)
                    elif pending.why_lost:
                        raise self._loss(conversation, facts, pending.why_lost)
                    return
                if not conversation.wait(pending, due):
                    raise self._too_late(facts, due)
        except NotServed as error:
            self._moved(facts, str(error))
            raise self._loss(conversation, facts, str(error)) from None
        finally:
            if not pending.done:
                conversation.cancel(pending)

    def _begin(
        self,
        conversation: Conversation,
        facts: MethodFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        due: float | None,
        *,
        keep: bool,
        future: Future[Any] | None = None,
        alone: bool = False,
        arrived: deque[Received] | None = None,
    ) -> Pending:
        message, packed = self._message(
            conversation, facts, args, kwargs, due, keep=keep, credit=0 if arrived is None else STREAM_CREDIT
        )
        return conversation.begin(message, packed, alone=alone or future is not None, future=future, arrived=arrived)

    def _message(
        self,
        conversation: Conversation,
        facts: MethodFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        due: float | None,
        *,
        keep: bool,
        credit: int = 0,
    ) -> tuple[Call, Packed]:
        packed = pack_arguments(conversation.link, args, kwargs, keep=keep)
        running = frame.current.get()
        chain = running.chain_here() if running is not None else ()
        timeout_s = None if due is None else max(0.0, due - time.monotonic())
        assert self._place
        return Call(0, self._place.target, facts.name, bool(kwargs), timeout_s, chain, packed.shared, credit), packed

    def _connect(self, facts: MethodFacts, due: float | None) -> Conversation:
        """Find the service and dial it, waiting for it while it starts.

        Raises:
            ServiceLost: it has ended for good.
            DeadlineExceeded: it was not up in time.
            ProgramStopped: the program is being stopped.
        """
        directory = self._caller.directory
        place = directory.find(self._name, self.index)
        while True:
            if place.state == "up":
                try:
                    self._place = place
                    self._conversation = self._caller.converse(self._where(), place)
                    return self._conversation
                except TransportError as error:
                    place = directory.wait_for_news(self._name, self.index, place, _wait_s(due, 0.05))
                    if place.state == "up" and due is not None and time.monotonic() >= due:
                        raise self._too_late(facts, due, f"nobody answers at {place.address}: {error}") from None
                    continue
            if place.state == "stopped":
                raise ProgramStopped(
                    f"{self._where()} answers no more calls: {place.cause or 'the program is stopping'}"
                )
            if place.state != "waiting":
                raise self._gone(place, started=False)
            if due is not None and time.monotonic() >= due:
                raise self._too_late(facts, due, place.cause)
            place = directory.wait_for_news(self._name, self.index, place, _wait_s(due, 1.0))

    def _lost(self, conversation: Conversation, facts: MethodFacts, *, started: bool) -> None:
        """The link ended; returns if the call may be repeated."""
        if started and not facts.idempotent:
            raise self._loss(conversation, facts, conversation.closed)
        if self._conversation is conversation:
            self._conversation = None

    def _loss(self, conversation: Conversation, facts: MethodFacts, why: str) -> Exception:
        """What to raise for a call that may have run."""
        if self._conversation is conversation:
            self._conversation = None
        return self._what_became(facts, why)

    def _what_became(self, facts: MethodFacts, why: str) -> Exception:
        seen = self._place
        assert seen
        place = self._caller.directory.wait_for_news(self._name, self.index, seen, _NEWS_S)
        if place.state == "stopped":
            return ProgramStopped(f"{self._where()} ended with the program while it ran {facts.name}")
        return self._gone(place, started=True, call=facts.name, why=why)

    def _gone(self, place: Place, *, started: bool, call: str = "", why: str = "") -> ServiceLost:
        cause = place.cause or why or "it is gone, and nobody saw how"
        if not started:
            message = f"{self._where()} has ended and is not started again: {cause}"
        else:
            again = "it is being restarted" if place.state in ("waiting", "up") else "it is not started again"
            message = (
                f"{self._where()} went while it ran {call}(), which may or may not have had its effect: {cause}; "
                f"{again}. If {call} may safely run twice, mark it @rw.idempotent: then it is repeated by itself"
            )
        return ServiceLost(message, service=self._name, replica=self.index, cause=cause, started=started)

    def _moved(self, facts: MethodFacts, reason: str) -> None:
        """The process is there and the object is not: wait a moment for its new place, then try again."""
        seen, self._conversation = self._place, None
        assert seen
        place = self._caller.directory.wait_for_news(self._name, self.index, seen, _NEWS_S)
        if place is seen:
            raise self._gone(Place("failed", cause=reason), started=False)

    def _refuse(self, facts: MethodFacts) -> Any:
        """Say what became of a call that was lost under way and must not be repeated."""
        raise self._what_became(facts, "")

    def _in_thread(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        running = frame.current.get()

        def run() -> None:
            token = frame.current.set(running)
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            finally:
                frame.current.reset(token)

        self._caller.threads.run(run)
        return future

    def _too_late(self, facts: MethodFacts, due: float | None, why: str = "") -> DeadlineExceeded:
        call = f"{self._name}.{facts.name}"
        because = f" ({why})" if why else ""
        return DeadlineExceeded(
            f"{call}() was not answered before the deadline{because}; the call was cancelled. Give it more time "
            f"with rw.deadline(seconds), or ask `ropewalk stack` what {self._where()} is doing",
            call=call,
        )

    def _where(self) -> str:
        return f"{self._name}[{self.index}]" if self._caller.directory.replicas(self._name) > 1 else self._name


class CallFuture(Future[Any]):
    """A future whose waiter reads the answer itself."""

    conversation: Conversation
    pending: Pending | None = None
    retry: Callable[[], Any]
    threads: Threads

    def result(self, timeout: float | None = None) -> Any:
        """As of any future; see `Replica.call` for what is raised."""
        self._await(timeout)
        return super().result(0 if timeout is not None else None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of any future."""
        self._await(timeout)
        return super().exception(0 if timeout is not None else None)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As of any future."""
        super().add_done_callback(fn)
        if not self.done():
            self.conversation.watch()

    def cancel(self) -> bool:
        """Cancel the call, too, if it has not begun."""
        cancelled = super().cancel()
        if cancelled and self.pending:
            self.conversation.cancel(self.pending)
        return cancelled

    def set_exception(self, exception: BaseException | None) -> None:
        """As of any future; what became of a lost call is found out in another thread."""
        if isinstance(exception, Lost | NotServed):
            self.threads.run(self._settle_loss)
            return
        super().set_exception(exception)

    def _settle_loss(self) -> None:
        try:
            value = self.retry()
        except BaseException as error:
            super().set_exception(error)
        else:
            super().set_result(value)

    def _await(self, timeout: float | None) -> None:
        if self.done() or self.pending is None:
            return
        due = None if timeout is None else time.monotonic() + timeout
        self.conversation.wait(self.pending, due)
        if not self.done() and due is not None:
            super().result(max(0.0, due - time.monotonic()))  # (raises TimeoutError)


class RemoteMethod:
    """One method of a service, with the ways to call it."""

    __slots__ = ("__name__", "_choose", "_facts")

    def __init__(self, facts: MethodFacts, choose: Callable[[], Replica]) -> None:
        self._facts = facts
        self._choose = choose
        self.__name__ = facts.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call, and wait for what it returns."""
        running = frame.current.get()
        due = running.deadline if running is not None else None
        if self._facts.streams:
            return self._choose().stream(self._facts, args, kwargs, due)
        return self._choose().call(self._facts, args, kwargs, due)

    def future(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call without waiting; cancelling the future cancels the call if it has not begun."""
        running = frame.current.get()
        due = running.deadline if running is not None else None
        return self._choose().future(self._single(), args, kwargs, due)

    def aio(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call from a coroutine; cancelling the task cancels the call."""
        return asyncio.wrap_future(self.future(*args, **kwargs))

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Call and do not wait; what the method returns or raises is dropped."""
        running = frame.current.get()
        due = running.deadline if running is not None else None
        self._choose().send(self._single(), args, kwargs, due)

    def __repr__(self) -> str:
        return f"<remote method {self._facts.name}>"

    def _single(self) -> MethodFacts:
        if self._facts.streams:
            raise TypeError(f"{self._facts.name} is a generator and streams: call it, and iterate over what it gives")
        return self._facts


class MethodOfAll:
    """One method of all replicas of a service: lists come back, in the order of the replicas."""

    __slots__ = ("__name__", "_facts", "_replicas")

    def __init__(self, facts: MethodFacts, replicas: Callable[[], list[Replica]]) -> None:
        self._facts = facts
        self._replicas = replicas
        self.__name__ = facts.name

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call all at the same time, and wait for all; the first failure is raised."""
        return [future.result() for future in self._futures(args, kwargs)]

    def future(self, *args: Any, **kwargs: Any) -> Future[list[Any]]:
        """Call all without waiting; one future of the list."""
        gathered: Future[list[Any]] = Future()
        futures = self._futures(args, kwargs)
        missing = [len(futures)]

        def arrived(one: Future[Any]) -> None:
            missing[0] -= 1
            if gathered.done():
                return
            error = one.exception()
            if error is not None:
                gathered.set_exception(error)
            elif not missing[0]:
                gathered.set_result([future.result() for future in futures])

        for future in futures:
            future.add_done_callback(arrived)
        return gathered

    def aio(self, *args: Any, **kwargs: Any) -> Awaitable[list[Any]]:
        """Call all from a coroutine."""
        return asyncio.wrap_future(self.future(*args, **kwargs))

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Call all and do not wait."""
        running = frame.current.get()
        due = running.deadline if running is not None else None
        for replica in self._replicas():
            replica.send(self._facts, args, kwargs, due)

    def __repr__(self) -> str:
        return f"<remote method {self._facts.name} of all replicas>"

    def _futures(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Future[Any]]:
        if self._facts.streams:
            raise TypeError(
                f"{self._facts.name} streams, and streams of several replicas cannot be merged; use client[i]"
            )
        running = frame.current.get()
        due = running.deadline if running is not None else None
        return [replica.future(self._facts, args, kwargs, due) for replica in self._replicas()]


class Client:
    """A service, as its callers see it: its methods, callable from here.

    Attributes:
        all: the same for every replica at once; results are lists.
        any: one replica, chosen at each call: the one with the fewest calls of ours under way.
    """

    def __init__(self, caller: Caller, name: str, address: int | str, methods: Mapping[str, MethodFacts]) -> None:
        self.__dict__.update(_caller=caller, _name=name, _address=address, _methods=methods, _replicas={}, _turn=0)

    @property
    def all(self) -> Client:
        return self._at("all")

    @property
    def any(self) -> Client:
        return self._at("any")

    def __getitem__(self, replica: int) -> Client:
        num = len(self)
        if not -num <= replica < num:
            raise IndexError(f"{self._name} has {num} replicas; there is no number {replica}")
        return self._at(replica % num)

    def __len__(self) -> int:
        return self._caller.directory.replicas(self._name)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Client]:
        return (self._at(index) for index in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        facts = self._methods.get(name)
        if facts is None:
            if name.startswith("__"):
                raise AttributeError(name)
            near = difflib.get_close_matches(name, self._methods, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"{self._name} has no method {name!r}{hint} It has: {', '.join(self._methods)}")
        if self._address == "all":
            made: Any = MethodOfAll(facts, self._all_replicas)
        elif self._address == "any":
            made = RemoteMethod(facts, self._choose)
        else:
            replica = self._replica(self._address)
            made = RemoteMethod(facts, lambda: replica)
        self.__dict__[name] = made
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__("__call__")(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return ["all", "any", *self._methods]

    def __repr__(self) -> str:
        address = "" if self._address == "any" else f", {self._address!r}"
        return f"<client of {self._name}{address}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a client belongs to its node and cannot be sent; pass the handle of {self._name!r} to the node that needs "
            "it when the program is built"
        )

    def _at(self, address: int | str) -> Client:
        client = Client(self._caller, self._name, address, self._methods)
        client.__dict__["_replicas"] = self._replicas
        return client

    def _replica(self, index: int) -> Replica:
        replica = self._replicas.get(index)
        if replica is None:
            replica = self._replicas.setdefault(index, Replica(self._caller, self._name, index, self._methods))
        return replica

    def _all_replicas(self) -> list[Replica]:
        return [self._replica(index) for index in range(len(self))]

    def _choose(self) -> Replica:
        num = self._caller.directory.replicas(self._name)
        if num <= 1:
            return self._replicas.get(0) or self._replica(0)
        replicas = self._all_replicas()
        self.__dict__["_turn"] = turn = (self._turn + 1) % num
        # Among equals in turn; a replica that is not up is asked for only if no other is.
        order = replicas[turn:] + replicas[:turn]
        directory = self._caller.directory
        return min(
            order,
            key=lambda replica: (
                not replica.is_up and directory.find(self._name, replica.index).state != "up",
                replica.num_pending,
            ),
        )


def _wait_s(due: float | None, most_s: float) -> float:
    return most_s if due is None else max(0.0, min(due - time.monotonic(), most_s))


__all__ = ["Caller", "Client", "Directory", "Place"]
