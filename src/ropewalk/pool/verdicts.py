"""The errors of tasks that end because their worker died, and of a pool whose workers cannot start."""

from __future__ import annotations

from ropewalk.errors import InitializerFailed, TaskPoisoned, TaskTimeout, WorkerLost
from ropewalk.pool.worker_options import WorkerOptions
from ropewalk.processes.messages import Exited
from ropewalk.transport.failures import Failure, rebuild_error
from ropewalk.user_frames import stacks_text


def verdict(
    index: int | None, worker: str, deaths: tuple[str, ...], exited: Exited, options: WorkerOptions
) -> TaskTimeout | WorkerLost | TaskPoisoned:
    """Return the error of a task that is not tried again.

    Args:
        index: the task's index in its map; None for a single call.
        worker: name of the last worker that it was in.
        deaths: causes of the deaths that it is blamed for, oldest first.
        exited: how that worker ended.
        options: how often the pool repeats tasks.
    """
    if exited.timed_out:
        return timed_out(index, worker, options.process.task_limit_s or 0.0, exited)
    if options.at_most_once:
        return lost(index, worker, deaths[-1], exited)
    return poisoned(index, worker, deaths, options.max_deaths, exited)


def timed_out(index: int | None, worker: str, limit_s: float, exited: Exited) -> TaskTimeout:
    """Return the error of a task that exceeded its timeout; its worker was ended after it had printed its stacks."""
    stacks = f" Its stacks then:\n{stacks_text(exited.last_output)}" if exited.last_output else ""
    return TaskTimeout(
        f"{_task(index)} ran longer than task_timeout_s={limit_s:g} in {worker}, which was ended.{stacks}",
        index=index,
        timeout_s=limit_s,
    )


def lost(index: int | None, worker: str, cause: str, exited: Exited) -> WorkerLost:
    """Return the error of a task that may not be repeated and whose worker died."""
    return WorkerLost(
        f"{_task(index)} was lost with its worker, and at_most_once forbids to run it again: {cause}",
        worker=worker,
        index=index,
        cause=cause,
        last_output=exited.last_output,
    )


def poisoned(index: int | None, worker: str, deaths: tuple[str, ...], max_deaths: int, exited: Exited) -> TaskPoisoned:
    """Return the error of a task that has killed `max_deaths` workers."""
    listing = "\n".join(f"  {number}. {death}" for number, death in enumerate(deaths, 1))
    return TaskPoisoned(
        f"{_task(index)} killed {len(deaths)} worker{'s in a row' if len(deaths) > 1 else ''} and is not tried again "
        f"(max_deaths={max_deaths}); the others go on. The deaths:\n{listing}",
        deaths=deaths,
        worker=worker,
        index=index,
        cause=deaths[-1] if deaths else "",
        last_output=exited.last_output,
    )


def initializer_failed(failure: Failure, worker: str, where: str) -> InitializerFailed:
    """Return the error of a pool whose initializer raised in a worker; `where` is its name with its host."""
    kind = failure.type_name.removeprefix("builtins.")
    error = InitializerFailed(
        f"the pool's initializer raised {kind}: {failure.message} (in {worker}); no worker can start"
    )
    error.__cause__ = rebuild_error(failure, where)
    return error


def _task(index: int | None) -> str:
    return "the task" if index is None else f"task {index}"
