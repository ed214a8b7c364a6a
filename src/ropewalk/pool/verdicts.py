"""The errors of tasks that end because their worker died."""

from __future__ import annotations

from ropewalk.errors import TaskPoisoned, TaskTimeout, WorkerLost
from ropewalk.processes.messages import Exited


def timed_out(index: int | None, worker: str, limit_s: float, exited: Exited) -> TaskTimeout:
    """Return the error of a task that exceeded its timeout; its worker was ended after it had printed its stacks."""
    stacks = f" Its stacks then:\n{exited.last_output}" if exited.last_output else ""
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


def _task(index: int | None) -> str:
    return "the task" if index is None else f"task {index}"
