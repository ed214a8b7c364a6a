"""Exceptions of an executor, each a subclass of an error of Ropewalk and of one of `concurrent.futures`.

Programs that were written for `ProcessPoolExecutor` catch `BrokenProcessPool` (or `BrokenExecutor`) when a worker has
died; programs for Ropewalk catch `TaskPoisoned` and read its attributes. Both work. The classes are not in
`ropewalk.errors`, because importing the module of `BrokenProcessPool` takes 20 ms.
"""

from __future__ import annotations

import contextlib
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]  # missing from the stubs
from pickle import PicklingError

from ropewalk import errors


class WorkerLost(errors.WorkerLost, BrokenProcessPool):
    """A worker died while it ran a task that may not be repeated; the executor stays usable."""


class TaskPoisoned(errors.TaskPoisoned, BrokenProcessPool):
    """One task killed `max_deaths` workers in a row, so it is not tried again; the executor stays usable."""


class InitializerFailed(errors.InitializerFailed, BrokenProcessPool):
    """The executor's initializer raised in a worker; `__cause__` is the exception that it raised."""


class CrashLoop(errors.CrashLoop, BrokenProcessPool):
    """The executor's workers died more often than the restart budget allows."""


class StartFailed(errors.StartFailed, BrokenProcessPool):
    """The executor's workers could not be started."""


class ProcessLimit(errors.ProcessLimit, BrokenProcessPool):
    """A host has reached its limit of processes, so no worker can be started on it."""


class NotPicklable(errors.NotPicklable, PicklingError):
    """A call or its result cannot be sent; only its future fails."""


_TWINS: dict[type[BaseException], type[errors.RopewalkError]] = {
    errors.WorkerLost: WorkerLost,
    errors.TaskPoisoned: TaskPoisoned,
    errors.InitializerFailed: InitializerFailed,
    errors.CrashLoop: CrashLoop,
    errors.StartFailed: StartFailed,
    errors.ProcessLimit: ProcessLimit,
    errors.NotPicklable: NotPicklable,
}


def as_futures_name_it(error: BaseException) -> BaseException:
    """Return the error that a future shows: the subclass in this module if there is one, else the same error."""
    if isinstance(error, MaybeEncodingError):  # raised by the standard library's pools, but not by its executors
        twin = NotPicklable(str(error))
        twin.__cause__ = error.__cause__
        return twin
    kind = _TWINS.get(type(error))
    if kind is None:
        return error
    twin = kind(*error.args, **error.__dict__)
    twin.__cause__ = error.__cause__
    twin.__traceback__ = error.__traceback__
    with contextlib.suppress(type(error)):
        raise error  # the future shows it: its pool, which logs what nobody has raised, has nothing to add
    return twin
