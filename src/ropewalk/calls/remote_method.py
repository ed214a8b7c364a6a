"""One method of a service, as its callers see it, with the ways to call it.

RemoteMethod   .m(x)  .m.future(x)  await .m.aio(x)  .m.send(x)     one replica, chosen at each call
MethodOfAll    the same for every replica at once, with arguments that are pickled once; results are lists
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from ropewalk.calls.begun_call import BegunCall
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.payloads import shared_arguments
from ropewalk.calls.replica import ReplicaClient
from ropewalk.errors import ServiceLost
from ropewalk.user_frames import shortened


class RemoteMethod:
    """One method of a service, with the ways to call it."""

    __slots__ = ("__name__", "_choose", "_facts")

    def __init__(self, facts: MethodFacts, choose: Callable[[], ReplicaClient]) -> None:
        self._facts = facts
        self._choose = choose
        self.__name__ = facts.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call, and wait for the result."""
        tried: list[ReplicaClient] = []
        while True:
            replica = self._choose()
            try:
                if self._facts.streams:
                    return replica.stream(self._facts, args, kwargs)
                return replica.call(self._facts, args, kwargs)
            except KeyboardInterrupt as error:
                shortened(error)
                raise
            except Exception as error:
                if not self._may_try_another(tried, replica, error):
                    shortened(error)
                    raise

    def future(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call without waiting; cancelling the future cancels the call, unless it runs already.

        Waits only while `MAX_IN_FLIGHT` (1024) calls are under way between the two processes, however large they are.
        """
        return self._choose().future(single(self._facts), args, kwargs)

    def begin(self, *args: Any, **kwargs: Any) -> BegunCall:
        """Call, and ask for the result later, in this thread; costs less than a future, which may be asked by any."""
        return self._choose().begin(single(self._facts), args, kwargs)

    def aio(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call from a coroutine; cancelling the task cancels the call."""
        return asyncio.wrap_future(self.future(*args, **kwargs))

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Call and do not wait; the result or exception is dropped. The number of calls is limited as for `future`."""
        tried: list[ReplicaClient] = []
        while True:
            replica = self._choose()
            try:
                return replica.send(single(self._facts), args, kwargs)
            except Exception as error:
                if not self._may_try_another(tried, replica, error):
                    shortened(error)
                    raise

    def __repr__(self) -> str:
        return f"<remote method {self._facts.name}>"

    def _may_try_another(self, tried: list[ReplicaClient], replica: ReplicaClient, error: Exception) -> bool:
        """Return whether a call that did not run, because its replica had just gone, may choose another one."""
        if not isinstance(error, ServiceLost) or error.started or replica in tried:
            return False
        tried.append(replica)
        return True


class MethodOfAll:
    """One method of all replicas of a service; results are lists, in the order of the replicas."""

    __slots__ = ("__name__", "_facts", "_replicas")

    def __init__(self, facts: MethodFacts, replicas: Callable[[], list[ReplicaClient]]) -> None:
        self._facts = facts
        self._replicas = replicas
        self.__name__ = facts.name

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call all replicas at the same time and wait for all; the first failure is raised."""
        return [future.result() for future in self._futures(args, kwargs)]

    def future(self, *args: Any, **kwargs: Any) -> Future[list[Any]]:
        """Call all replicas without waiting; return one future of the list."""
        return gather(self._futures(args, kwargs))

    def aio(self, *args: Any, **kwargs: Any) -> Awaitable[list[Any]]:
        """Call all replicas from a coroutine."""
        return asyncio.wrap_future(self.future(*args, **kwargs))

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Call all replicas and do not wait."""
        shared = shared_arguments(args, kwargs)
        for replica in self._replicas():
            replica.send(single(self._facts), args, kwargs, shared)

    def __repr__(self) -> str:
        return f"<remote method {self._facts.name} of all replicas>"

    def _futures(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Future[Any]]:
        if self._facts.streams:
            raise TypeError(
                f"{self._facts.name} streams, and streams of several replicas cannot be merged; use client[i]"
            )
        shared = shared_arguments(args, kwargs)
        return [replica.future(self._facts, args, kwargs, shared) for replica in self._replicas()]


def single(facts: MethodFacts) -> MethodFacts:
    """Return the facts of a method; refuse one that streams, where one answer is expected."""
    if facts.streams:
        raise TypeError(f"{facts.name} is a generator and streams: call it, and iterate over the result")
    return facts


def gather(futures: Sequence[Future[Any]]) -> Future[list[Any]]:
    """Return one future of all results; it fails with the first that fails, and cancelling it cancels all."""
    gathered: Future[list[Any]] = Future()
    lock = threading.Lock()
    num_missing = len(futures)

    def arrived(one: Future[Any]) -> None:
        nonlocal num_missing
        with lock:
            num_missing -= 1
            is_last = not num_missing
        error = CancelledError() if one.cancelled() else one.exception()
        with contextlib.suppress(InvalidStateError):  # another one failed first, or all were cancelled
            if error is not None:
                gathered.set_exception(error)
            elif is_last:
                gathered.set_result([future.result() for future in futures])

    def over(_: Future[Any]) -> None:
        if gathered.cancelled():
            for future in futures:
                future.cancel()

    gathered.add_done_callback(over)
    for future in futures:
        future.add_done_callback(arrived)
    return gathered


__all__ = ["MethodOfAll", "RemoteMethod"]
