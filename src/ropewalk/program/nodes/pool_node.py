"""`PoolNode`: an elastic pool of processes as a node, shared by all nodes that have its handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ropewalk.calls.markers import MethodFacts, concurrent, methods_of
from ropewalk.pool.constants import ConstantRef
from ropewalk.pool.pool import Pool
from ropewalk.pool.status import PoolStatus
from ropewalk.program.node import Node
from ropewalk.program.signatures import misfit

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext

S = TypeVar("S")
T = TypeVar("T")

_CONCURRENCY = 64
"""Maximum number of calls at once; maps wait for workers, not for each other."""
_NOT_OPTIONS = ("engine", "session")
"""Options of `Pool` that are not accepted: a pool node joins its program's session."""


class ServedPool:
    """The methods of a handle to a `PoolNode`; functions and results are sent, the workers belong to the node."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @concurrent(_CONCURRENCY)
    def map(self, func: Callable[[S], T], iterable: Iterable[S | ConstantRef], chunksize: int | None = None) -> list[T]:
        """Return `[func(item) for item in iterable]`, computed in the workers; the iterable is sent as a whole."""
        return self._pool.map(func, iterable, chunksize)

    @concurrent(_CONCURRENCY)
    def starmap(
        self, func: Callable[..., T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[T]:
        """Return `[func(*item) for item in iterable]`, computed in the workers."""
        return self._pool.starmap(func, iterable, chunksize)

    @concurrent(_CONCURRENCY)
    def apply(self, func: Callable[..., T], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> T:
        """Return `func(*args, **kwds)`, computed in a worker."""
        return self._pool.apply(func, args, kwds)

    @concurrent(_CONCURRENCY)
    def imap(self, func: Callable[[S], T], iterable: Iterable[S | ConstantRef], chunksize: int = 1) -> Iterator[T]:
        """Stream the results of `map`, in order."""
        yield from self._pool.imap(func, iterable, chunksize)

    @concurrent(_CONCURRENCY)
    def imap_unordered(
        self, func: Callable[[S], T], iterable: Iterable[S | ConstantRef], chunksize: int = 1
    ) -> Iterator[T]:
        """Stream the results of `map`, each as soon as it is ready."""
        yield from self._pool.imap_unordered(func, iterable, chunksize)

    @concurrent(_CONCURRENCY)
    def status(self) -> PoolStatus:
        """The state of the pool."""
        return self._pool.status()

    @concurrent(_CONCURRENCY)
    def resize(self, processes: int) -> None:
        """Change the number of workers."""
        self._pool.resize(processes)


class PoolNode(Node[ServedPool]):
    """A `Pool` whose workers run beside this node; any node with its handle can call `map`.

    Args:
        processes: number of workers; by default the number of CPUs that this node has (`resources`).
        **options: those of `Pool`, except for `engine` and `session`: the pool joins its program's session.
    """

    kind: ClassVar[str] = "pool"

    def __init__(self, processes: int | None = None, **options: Any) -> None:
        self.processes = processes
        self.options = options

    @property
    def label(self) -> str:
        return str(self.options.get("name") or "pool")

    def arguments(self) -> dict[str, Any]:
        return {"processes": self.processes} | self.options

    def methods(self) -> dict[str, MethodFacts] | None:
        return methods_of(ServedPool)

    def problems(self) -> Iterable[str]:
        for name in _NOT_OPTIONS:
            if name in self.options:
                yield f"a pool node runs where its program runs; give {name} to program.launch instead"
        reason = misfit(Pool, (self.processes,), self.options)
        if reason:
            yield reason
        if self.processes is not None and self.processes < 1:
            yield f"a pool needs at least 1 process, not {self.processes}"

    def run(self, context: NodeContext) -> None:
        options = context.resolve(self.options)
        with Pool(self.processes, **options) as pool:
            context.serve(ServedPool(pool), self.methods() or {})
            context.wait_for_stop()
