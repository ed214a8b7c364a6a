"""The submitter: makes the jobs of a pool, and brings functions and items from the user's thread to the dispatcher.

func ─▶ constant ──────────────┐
items ─ cut into units ─ pack ─┴─▶ dispatcher.submit, some hundred units at a time
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ropewalk.engines.resources import Resources
from ropewalk.errors import NotPicklable
from ropewalk.pool.chunking import check_chunksize, default_chunksize
from ropewalk.pool.constants import Constant, ConstantRef
from ropewalk.pool.dispatcher import Dispatcher
from ropewalk.pool.messages import CallKind
from ropewalk.pool.packing import Packer
from ropewalk.pool.results import AsyncResult, MapResult, PoolJob
from ropewalk.pool.task_table import TaskUnit
from ropewalk.transport.loop_with_guests import LoopWithGuests
from ropewalk.transport.serialization import dumps_code

T = TypeVar("T")

_SLICE_UNITS = 500
"""Number of units that a job submits at a time."""
_MOST_SEED = 0xFFFFFFFFFFFFFFFF


class LatestJob(threading.local):
    """The job that was made last in this thread: noted before any of its tasks can run, and not kept by this."""

    job: weakref.ref[AsyncResult[Any]] | None = None


class JobSubmitter:
    """Packs and submits the jobs of one pool, in the thread of the caller, as pickling runs user code.

    Args:
        dispatcher: the pool's dispatcher.
        workers: the resources that each worker asked for.
        call_back: runs the callbacks of results.
        loop: the loop of the pool's session.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        workers: Resources,
        call_back: Callable[[Callable[[], None]], None],
        loop: LoopWithGuests,
    ) -> None:
        self._dispatcher = dispatcher
        self._call_back = call_back
        self._loop = loop
        self._packer = Packer(dispatcher, workers)
        self._num_jobs = 0
        self.latest = LatestJob()

    def call(
        self,
        func: Callable[..., T],
        args: Iterable[Any],
        kwds: Mapping[str, Any] | None,
        callback: Callable[[T], Any] | None,
        error_callback: Callable[[BaseException], Any] | None,
        seed: int | None,
        avoids: Collection[str],
    ) -> AsyncResult[T]:
        """Run one call; see `Pool.apply_async`."""
        job: AsyncResult[T] = AsyncResult(
            callback, error_callback, self._call_back, self._loop, self._dispatcher.withdraw
        )
        self.latest.job = weakref.ref(job)
        job.avoids = frozenset(avoids)
        arguments = tuple(args)
        call = (arguments, dict(kwds)) if kwds else arguments
        self.submit(job, func, [(call,)], CallKind.APPLY if kwds else CallKind.APPLY_PLAIN, seed)
        return job

    def map(
        self,
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callable[[list[T]], Any] | None,
        error_callback: Callable[[BaseException], Any] | None,
        seed: int | None,
        *,
        star: bool,
    ) -> MapResult[T]:
        """Run a call for each item, or with each item as its arguments; see `Pool.map_async` and `starmap_async`."""
        items: Sequence[Any] = iterable if isinstance(iterable, list | tuple | range) else list(iterable)
        if chunksize is None:
            chunksize = default_chunksize(len(items), self._dispatcher.most_workers)
        check_chunksize(chunksize)
        job: MapResult[T] = MapResult(
            len(items), callback, error_callback, self._call_back, None, self._dispatcher.cancel
        )
        self.latest.job = weakref.ref(job)
        if items:
            cut: list[Sequence[Any]] = [items[at : at + chunksize] for at in range(0, len(items), chunksize)]
            if not isinstance(items, range):
                cut = [tuple(chunk) for chunk in cut]
            self.submit(job, func, cut, CallKind.STAR if star else CallKind.ONE, seed)
        return job

    def put(self, value: Any) -> ConstantRef:
        """Return a reference to a value that every host gets once; see `Pool.put`."""
        constant = self._packer.constant(dumps_code(value, what="value"))
        # The reference may be dropped by the garbage collector anywhere, even while this thread holds the pool's lock:
        # act in the loop.
        loop, dispatcher = self._loop, self._dispatcher
        return ConstantRef(constant, dispatcher, lambda: loop.call_soon(lambda: dispatcher.let_go(constant)))

    def submit(
        self, job: PoolJob, func: Callable[..., Any], cut: Iterable[Sequence[Any]], kind: int, seed: int | None
    ) -> None:
        """Run `func` for items that were cut into units; see `Pool.start_job`."""
        package = self.package(job, func, kind, seed)
        units: list[TaskUnit] = []
        first = 0
        try:
            for items in cut:
                units.append(package.unit(items, first))
                first += len(items)
                if len(units) == _SLICE_UNITS:  # workers begin while later units are pickled
                    self._dispatcher.submit(units)
                    units = []
            self._dispatcher.submit(units, package.held_until_now())
        except BaseException as error:
            if isinstance(error, NotPicklable) and kind in CallKind.SINGLE:
                error = _named_for_apply(error, has_keywords=kind in CallKind.WITH_KEYWORDS)
            self._dispatcher.cancel(job, error, running=True)  # nobody can ask for its results
            for unit in units:  # those that were not submitted, and may have memory files
                unit.content.close()
            if isinstance(error, NotPicklable):  # its message says enough: the frames of pickling would only hide it
                error.__traceback__ = None
            raise error
        finally:
            package.close()

    def package(self, job: PoolJob, func: Callable[..., Any], kind: int, seed: int | None) -> JobPackage:
        """Return what packs the items of one job; its `close` must be called."""
        code = self._packer.code(func)
        self._num_jobs += 1
        return JobPackage(
            self._packer, self._dispatcher, job, code, kind, self._num_jobs if seed is None else seed & _MOST_SEED
        )


class JobPackage:
    """Packs the items of one job into units, and holds the constants that they share meanwhile."""

    def __init__(
        self, packer: Packer, dispatcher: Dispatcher, job: PoolJob, code: Constant, kind: int, seed: int
    ) -> None:
        self._packer = packer
        self._dispatcher = dispatcher
        self._job = job
        self._code = code
        self._held: Sequence[Constant] = (code,)
        self._kind = kind
        self._seed = seed
        self._what = "args" if kind in CallKind.SINGLE else "iterable"
        self._defined: dict[frozenset[str], Constant] = {}

    def unit(self, items: Sequence[Any], first: int) -> TaskUnit:
        """Pack some items, of which the first has this position in the map.

        Raises:
            NotPicklable: an item cannot be sent.
        """
        return self._packer.unit(
            self._job, self._code, items, first, self._kind, self._seed, what=self._what, defined=self._defined
        )

    def submit(self, items: Sequence[Any], first: int) -> None:
        """Pack some items and submit them."""
        self._dispatcher.submit([self.unit(items, first)])

    def held_until_now(self) -> Sequence[Constant]:
        """Return the constants that are held for the units, for the caller to let go; `close` then does nothing."""
        held, self._held = [*self._held, *self._defined.values()], ()
        self._defined = {}
        return held

    def close(self) -> None:
        """Hold the constants no longer; the units that were submitted hold what they need. May be called twice."""
        if held := self.held_until_now():
            self._dispatcher.let_go(*held)


def _named_for_apply(error: NotPicklable, *, has_keywords: bool) -> NotPicklable:
    """Return the error with a path as the caller of `apply` sees it: a call travels as one item, with its `kwds`."""
    inside = error.path.removeprefix("args[0]")
    path = f"args{inside}"
    if has_keywords:
        path = ("kwds" if inside.startswith("[1]") else "args") + inside[3:]
    named = NotPicklable(str(error).replace(error.path, path, 1), path=path).with_traceback(error.__traceback__)
    named.__cause__ = error.__cause__  # and not `error`, which says the same of another path
    return named
