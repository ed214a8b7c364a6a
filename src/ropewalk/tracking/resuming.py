"""Which run the same command goes on with, and the wait for an owner on another host that may have been killed.

A process that was killed on another host counts as running in the store for a minute (`store.owners`). A job that is
requeued begins again sooner, and mostly on another host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ropewalk.tracking import records
from ropewalk.tracking.store.own_runs import own_runs
from ropewalk.tracking.store.owners import SILENT_S, LocalProcesses
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


def unfinished_run(
    store: RunStore,
    project: str,
    name: str,
    folder: Path | None = None,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Return the id of this user's newest run of a script with this name, unless it is done; empty if there is none.

    Args:
        store: the store.
        project: project of the run.
        name: its name.
        folder: folder in which each run has its own, if the user names one.
        sleep: waits for some seconds.
    """
    rows = store.runs(project=project, kind="script", text=name, order="-created")
    row = next(own_runs(store, (row for row in rows if row.name == name), folder), None)
    if row is None or row.state == records.DONE:
        return ""
    wait_for_lost_owner(store, row, sleep=sleep)
    return row.id


def wait_for_lost_owner(store: RunStore, row: RunRow, *, sleep: Callable[[float], object] = time.sleep) -> bool:
    """Return when the owner of a run on another host is heard, or is lost; at once if the kernel knows of it here.

    Args:
        store: the store.
        row: the run.
        sleep: waits for some seconds.

    Returns:
        Whether nothing was heard of it for as long as it takes to be lost. The run may still count as running in the
        store, whose times are those of another host.
    """
    here, owner = LocalProcesses(), row.owner
    if (
        row.state != records.RUNNING
        or owner is None
        or (here.boot and (owner.host, owner.boot) == (here.host, here.boot))
    ):
        return False
    logger.warning(
        "%s (%s) was running a moment ago in process %d on %s, which may have been killed: it goes on here if nothing "
        "is heard of that process for %.0f s",
        row.name, row.id, owner.pid, owner.host, SILENT_S,
    )  # fmt: skip
    waited_s = 0.0
    while waited_s <= SILENT_S:  # the clocks of the two hosts may differ, and the silence with them
        sleep(_LOOK_S)
        waited_s += _LOOK_S
        now = store.run(row.id)
        if now.state != records.RUNNING or now.heard != row.heard:
            return False
    return True


__all__ = ["unfinished_run", "wait_for_lost_owner"]
