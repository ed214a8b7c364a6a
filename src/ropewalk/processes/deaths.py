"""Makes the record of a death, for the user, from an agent's report."""

from __future__ import annotations

from ropewalk.processes.messages import Exited
from ropewalk.supervision.failure import DeathRecord


def record_of(
    exited: Exited, *, name: str, host: str, task_index: int | None = None, task_ran_s: float | None = None
) -> DeathRecord:
    """Return the record of a process's death.

    Args:
        exited: the agent's report.
        name: the name of the process.
        host: where it ran.
        task_index: index of the task that it was in; None for a single call, or if it was in no task.
        task_ran_s: seconds for which it had been in that task; None if it was in no task.
    """
    return DeathRecord.from_exit_code(
        exited.exit_code,
        name=name,
        host=host,
        pid=exited.pid,
        out_of_memory=exited.out_of_memory,
        ended_by=exited.ended_by,
        last_output=exited.last_output,
        task_index=task_index,
        task_ran_s=task_ran_s,
        ran_s=exited.ran_s,
    )
