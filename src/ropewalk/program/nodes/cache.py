"""`Cache`: answers repeated calls from memory, near the callers.

    many actors ──▶ Cache ──▶ Service        one upstream call per `ttl_s` and set of arguments

Concurrent calls with equal arguments share one upstream call. If it fails, all of them fail, and the next call tries
again. Answers in memory are never changed, so callers on one host share a large one (`Frozen`).
"""

from __future__ import annotations

import collections
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from ropewalk.argument_kinds import check_number
from ropewalk.calls.frozen import Frozen
from ropewalk.calls.markers import MethodFacts
from ropewalk.errors import DeadlineExceeded, NotPicklable
from ropewalk.program.handle import Handle, vertex_of
from ropewalk.program.node import Node
from ropewalk.transport.serialization import dumps

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext

T_co = TypeVar("T_co", covariant=True)

_CONCURRENCY = 64
"""Maximum number of calls at once; each call that waits for an upstream answer counts."""
_NOT_SERVED = frozenset({"state_dict", "load_state_dict"})
"""The cache's state is not the service's state."""


class Cache(Node[T_co]):
    """Serves the methods of another service, and answers repeated calls with equal arguments from memory.

    A call whose answer is in memory does not reach the service, so methods that change the service must not be cached:
    list the methods that only read in `only`. Generators always reach the service. Callers on the cache's host share
    the memory of large answers, as with any `Frozen` answer.

    Args:
        target: the handle of the service.
        ttl_s: seconds for which an answer is reused.
        only: the methods to cache; the others are passed on. All by default.
        max_entries: maximum number of answers kept; the oldest are dropped first.

    Raises:
        TypeError: `target` is not a handle, `only` is a string, or a number is something else.
        ValueError: a number is out of its range.
    """

    kind: ClassVar[str] = "cache"

    def __init__(
        self, target: Handle[T_co], ttl_s: float, *, only: Iterable[str] | None = None, max_entries: int = 10_000
    ) -> None:
        if not isinstance(target, Handle):
            raise TypeError(f"Cache needs a handle, as in Cache(program.add(Service(Store)), ttl_s=1), not {target!r}")
        check_number("ttl_s", ttl_s, Real, "a number of seconds", above=0, finite=True, required=True)
        check_number("max_entries", max_entries, Integral, "a whole number", least=1, required=True)
        if isinstance(only, str):
            raise TypeError(f"only must be a list of names of methods, as in only=[{only!r}], not the string {only!r}")
        self.target = target
        self.ttl_s = ttl_s
        self.only: frozenset[str] | None = None if only is None else frozenset(only)
        self.max_entries = max_entries

    @property
    def label(self) -> str:
        return f"{self.target.name}-cache"

    def arguments(self) -> dict[str, Any]:
        return {"target": self.target}

    def methods(self) -> dict[str, MethodFacts] | None:
        methods = _methods_behind(self.target)
        if methods is None:
            return None
        return {
            name: msgspec.structs.replace(facts, concurrency=_CONCURRENCY, batch_size=0, batch_wait_s=0.0)
            for name, facts in methods.items()
            if name not in _NOT_SERVED
        }

    def problems(self) -> Iterable[str]:
        methods = self.methods()
        for name in sorted(self.only or ()):
            if methods is not None and name not in methods:
                yield f"only names {name!r}, but {self.target.name!r} has no such method; it has {', '.join(methods)}"

    def run(self, context: NodeContext) -> None:
        methods = self.methods() or {}
        client = context.resolve(self.target)
        context.serve(CachedClient(client, methods, self.ttl_s, only=self.only, max_entries=self.max_entries), methods)
        context.wait_for_stop()


class CachedClient:
    """The methods of a client, with a memory. Remembered answers are returned as `Frozen`.

    Args:
        client: receives the calls whose answers are not known.
        methods: its methods, by name.
        ttl_s, only, max_entries: as in `Cache`.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self,
        client: Any,
        methods: Mapping[str, MethodFacts],
        ttl_s: float,
        *,
        only: frozenset[str] | None = None,
        max_entries: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: collections.OrderedDict[bytes, tuple[Future[Frozen[Any]], float]] = collections.OrderedDict()
        """Answers and their expiry times, the oldest first; answers still under way do not expire."""
        self._cached = {name for name, facts in methods.items() if not facts.streams and (only is None or name in only)}
        for name in methods:
            if name != "__call__":
                setattr(self, name, functools.partial(self._ask, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("__call__", *args, **kwargs)

    def _pass_on(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._client, name)(*args, **kwargs)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        key = _key(name, args, kwargs) if name in self._cached else None
        if key is None:
            return self._pass_on(name, *args, **kwargs)
        while True:
            answer, is_mine = self._claim(key)
            if is_mine:
                return self._fetch(key, answer, name, args, kwargs)
            try:
                return answer.result()
            except DeadlineExceeded:
                continue  # the deadline of the caller that asked upstream; this caller's may be later

    def _claim(self, key: bytes) -> tuple[Future[Frozen[Any]], bool]:
        """Return the future of an answer, and whether this caller has to fetch the answer."""
        with self._lock:
            now = self._clock()
            while self._answers:
                oldest = next(iter(self._answers))
                if self._answers[oldest][1] > now and len(self._answers) <= self._max_entries:
                    break
                del self._answers[oldest]
            known = self._answers.get(key)
            if known is not None and known[1] > now:
                return known[0], False
            answer: Future[Frozen[Any]] = Future()
            self._answers[key] = answer, float("inf")
            return answer, True

    def _fetch(self, key: bytes, answer: Future[Frozen[Any]], name: str, args: Any, kwargs: Any) -> Any:
        try:
            value = self._pass_on(name, *args, **kwargs)
        except BaseException as error:
            with self._lock:
                self._forget(key, answer)
            answer.set_exception(error)
            raise
        with self._lock:
            self._forget(key, answer)
            self._answers[key] = answer, self._clock() + self._ttl_s  # at the end: entries are in order of expiry
        shared = Frozen(value)
        answer.set_result(shared)
        return shared

    def _forget(self, key: bytes, answer: Future[Frozen[Any]]) -> None:
        known = self._answers.get(key)
        if known is not None and known[0] is answer:
            del self._answers[key]


def _key(name: str, args: Any, kwargs: Mapping[str, Any]) -> bytes | None:
    """A key that calls with equal arguments share; None for arguments that cannot be pickled."""
    try:
        payload = dumps((name, args, sorted(kwargs.items())))
    except NotPicklable:
        return None
    digest = hashlib.blake2b(payload.pickle, digest_size=32)
    for buffer in payload.buffers:
        digest.update(buffer)
    return digest.digest()


def _methods_behind(handle: Handle[Any]) -> Mapping[str, MethodFacts] | None:
    """The methods of a handle's service, through caches of caches; None also for a cycle of caches."""
    seen: set[str] = set()
    node = vertex_of(handle).node
    while isinstance(node, Cache):
        handle = node.target
        if handle.name in seen:
            return None
        seen.add(handle.name)
        node = vertex_of(handle).node
    return handle.methods
