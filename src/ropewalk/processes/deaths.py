"""Makes the record of a death, for the user, from an agent's report."""

from __future__ import annotations

from ropewalk.processes.messages import Exited
from ropewalk.supervision.failure import DeathRecord


def record_of(exited: Exited, *, name: str, host: str, task_index: int | None = None) -> DeathRecord:
    """Return the record of a process's death."""
    return DeathRecord.from_exit_code(
        exited.exit_code,
        name=name,
        host=host,
        pid=exited.pid,
        out_of_memory=exited.out_of_memory,
        last_output=exited.last_output,
        task_index=task_index,
        ran_s=exited.ran_s,
    )
