"""What an executor raises, as `concurrent.futures` names it: each is Ropewalk's own error and the standard library's.

Programs that were written for `ProcessPoolExecutor` catch `BrokenProcessPool` (or `BrokenExecutor`) when a worker has
died; those written for Ropewalk catch `TaskPoisoned` and read its facts. Both find what they look for. They are not
in `ropewalk.errors`, because the module that `BrokenProcessPool` lives in takes 20 ms to import.
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]  # the stubs do not know it
from pickle import PicklingError

from ropewalk import errors


class WorkerLost(errors.WorkerLost, BrokenProcessPool):
    """A worker died while it ran a task that may not be repeated; the executor goes on."""


class TaskPoisoned(errors.TaskPoisoned, BrokenProcessPool):
    """One task killed `max_deaths` workers in a row, so it is not tried again; the executor goes on."""


class InitializerFailed(errors.InitializerFailed, BrokenProcessPool):
    """The executor's initializer raised in a worker; its own exception is the cause."""


class CrashLoop(errors.CrashLoop, BrokenProcessPool):
    """The executor's workers died more often than the restart budget allows."""


class StartFailed(errors.StartFailed, BrokenProcessPool):
    """The executor's workers could not be started."""


class ProcessLimit(errors.ProcessLimit, BrokenProcessPool):
    """A host already holds as many processes as it may, and can have no worker more."""


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
    """The error that a future shows: the same, or for what breaks executors its twin of this module."""
    if type(error) is MaybeEncodingError:  # the standard library's pools call it so, its executors do not
        twin = NotPicklable(str(error))
        twin.__cause__ = error.__cause__
        return twin
    kind = _TWINS.get(type(error))
    if kind is None:
        return error
    twin = kind(*error.args, **error.__dict__)
    twin.__cause__ = error.__cause__
    return twin.with_traceback(error.__traceback__)
