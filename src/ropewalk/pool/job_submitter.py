"""The submitter: brings a function and its items from the user's thread to the dispatcher.

func ─▶ constant ──────────────┐
items ─ cut into units ─ pack ─┴─▶ dispatcher.submit, some hundred units at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ropewalk.engines.resources import Resources
from ropewalk.errors import NotPicklable
from ropewalk.pool.constants import Constant
from ropewalk.pool.dispatcher import Dispatcher
from ropewalk.pool.messages import CallKind
from ropewalk.pool.packing import Packer
from ropewalk.pool.results import PoolJob
from ropewalk.pool.task_table import TaskUnit
from ropewalk.transport.serialization import Code

_SLICE_UNITS = 500
"""Number of units that a job submits at a time."""
_MOST_SEED = 0xFFFFFFFFFFFFFFFF


class JobSubmitter:
    """Packs and submits the jobs of one pool, in the thread of the caller, as pickling runs user code.

    Args:
        dispatcher: the pool's dispatcher.
        workers: the resources that each worker asked for.
    """

    def __init__(self, dispatcher: Dispatcher, workers: Resources) -> None:
        self._dispatcher = dispatcher
        self._packer = Packer(dispatcher, workers)
        self._num_jobs = 0

    def constant(self, code: Code) -> Constant:
        """Return the constant of a value, held until `let_go` of the dispatcher."""
        return self._packer.constant(code)

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
            self._dispatcher.submit(units)
        except BaseException as error:
            if isinstance(error, NotPicklable) and kind in CallKind.SINGLE:
                error = _named_for_apply(error, has_keywords=kind in CallKind.WITH_KEYWORDS)
            self._dispatcher.cancel(job, error)
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

    def close(self) -> None:
        """Hold the constants no longer; the units that were submitted hold what they need."""
        self._dispatcher.let_go(self._code, *self._defined.values())


def _named_for_apply(error: NotPicklable, *, has_keywords: bool) -> NotPicklable:
    """Return the error with a path as the caller of `apply` sees it: a call travels as one item, with its `kwds`."""
    inside = error.path.removeprefix("args[0]")
    path = f"args{inside}"
    if has_keywords:
        path = ("kwds" if inside.startswith("[1]") else "args") + inside[3:]
    named = NotPicklable(str(error).replace(error.path, path, 1), path=path).with_traceback(error.__traceback__)
    named.__cause__ = error.__cause__  # and not `error`, which says the same of another path
    return named
